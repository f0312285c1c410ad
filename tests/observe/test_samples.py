"""Sample texts reach TensorBoard as texts: its own functions, which read Markdown and HTML, make no markup of them."""

import html
import re
import warnings

import pytest

from lockstep.observe.progress import as_code

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a library that TensorBoard brings along
    from tensorboard.plugin_util import markdown_to_safe_html


def shown(*lines):
    """What a browser would show, where TensorBoard makes a block of code and nothing else."""
    page = markdown_to_safe_html(as_code(lines).encode())
    block = re.fullmatch(r"<pre><code>([^<>]*)</code></pre>", page)
    assert block, page
    return html.unescape(block[1]).rstrip("\n").split("\n")


@pytest.mark.parametrize(
    "text",
    [
        "![x](http://evil.example/x.png)",
        "<img src=http://evil.example/x.png> <a href='http://evil.example'>here</a>",
        "[here](http://evil.example) and ![x][x]",
        "[x]: http://evil.example 'title'",
        "``` ~~~ ```` `code`",
        "</code></pre><img src=x>",
        "<!-- <script> <textarea> <![CDATA[ <?php <plaintext>",
        "| a | b | *c* _d_ **e** \\ &lt; &amp; &#60;",
        "    # 1. - > two  spaces",
    ],
)
def test_markup_is_shown_as_it_was_written(text):
    assert shown(text) == [text]
    assert shown(f"source       {text}", "", f"target       {text}") == [
        f"source       {text}",
        "",
        f"target       {text}",
    ]


def test_control_characters_are_shown_and_end_no_line():
    assert shown("a\x1b[31mb\tc\x00d\x0be\x0cf\x85g\u2028h\ni\r![x](http://evil.example/x.png)") == [
        r"a\x1b[31mb\tc\x00d\x0be\x0cf\x85g\u2028h\ni\r![x](http://evil.example/x.png)"
    ]
