"""Files appear whole or not at all, and nothing else is touched."""

import os
import stat
from pathlib import Path

import pytest

from lockstep.base.files import whole_file, write_whole


def test_a_link_of_the_final_name_is_replaced_and_its_target_stays(tmp_path):
    victim, name = tmp_path / "victim", tmp_path / "config.yaml"
    victim.write_text("mine")
    name.symlink_to(victim)
    write_whole(name, "new")
    assert (victim.read_text(), name.read_text(), name.is_symlink()) == ("mine", "new", False)


def test_a_link_that_the_user_named_is_written_through(tmp_path):
    target, name = tmp_path / "target", tmp_path / "link"
    name.symlink_to(target)
    write_whole(name, "new", follow=True)
    assert target.read_text() == "new"
    assert name.is_symlink()


def test_a_device_that_the_user_named_stays_a_device():
    write_whole(Path(os.devnull), "x", follow=True)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_failure_leaves_what_was_there_and_nothing_more(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def fail():
        with whole_file(path) as file:
            file.write(b"half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_whole(tmp_path / "whole", "")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode
