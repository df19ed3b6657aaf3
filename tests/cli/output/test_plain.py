"""Plain text is aligned, and tables fit into narrow terminals."""

from rich.console import Console

from tests.cli.output.test_render import NOW
from tests.cli.records import AT, workspace
from torpor.cli.output import render, render_users
from torpor.cli.output.colours import coloured
from torpor.cli.output.plain import cells, fit_to_width, natural_width, to_text
from torpor.cli.output.render_users import Record
from torpor.cli.output.shapes import Column, Group, Renderable, Table, facts, line, table, text


def drawn_at_a_terminal(drawn: Renderable, width: int, **how: object) -> str:
    console = Console(width=width, force_terminal=True, markup=False, highlight=False, emoji=False, **how)  # type: ignore[arg-type]
    with console.capture() as captured:
        console.print(coloured(drawn, width))
    return captured.get()


def test_columns_are_aligned_without_trailing_spaces() -> None:
    rows = [[text("a"), text(7), text("x")], [text("long"), text(123), text("")]]
    shown = to_text(table(["NAME", Column("SIZE", is_right=True), "WHY"], rows))
    assert shown == "NAME  SIZE  WHY\na        7  x\nlong   123\n"


def test_a_value_of_several_lines_stays_in_its_column() -> None:
    shown = facts([("one", text("a\nb")), ("three", text("c"))])
    assert to_text(shown) == "one    a\n       b\nthree  c\n"


def test_wide_letters_take_two_columns() -> None:
    assert (cells("ab"), cells("日本"), cells("e\N{COMBINING ACUTE ACCENT}")) == (2, 4, 1)
    assert to_text(table(["A", "B"], [[text("日本"), text("x")]])) == "A     B\n日本  x\n"


def test_tabs_count_in_the_column_width() -> None:
    assert to_text(table(["A", "B"], [[text("a\tb"), text("x")]])) == "A          B\na       b  x\n"


def test_plain_text_is_what_a_terminal_shows_without_its_colours() -> None:
    for drawn in (
        render.workspaces([workspace(), workspace(name="other", owner="eve")], NOW),
        render.workspace(workspace(), NOW),
        Group((text("one"), line("two ", text("three", "red")), facts([("a", text("b"))], indent=2))),
    ):
        shown = drawn_at_a_terminal(drawn, 300, color_system=None)
        assert [each.rstrip() for each in shown.splitlines()] == to_text(drawn).splitlines()


def test_colours_are_shown_at_a_terminal_unless_disabled() -> None:
    drawn = render.workspaces([workspace()], NOW)
    assert "\x1b[" in drawn_at_a_terminal(drawn, 200, color_system="standard")
    assert "\x1b[3" not in drawn_at_a_terminal(drawn, 200, color_system="standard", no_color=True)


def test_less_important_columns_are_dropped_at_small_widths() -> None:
    whole = render.workspaces([workspace()], NOW)
    assert isinstance(whole, Table)
    assert fit_to_width(whole, natural_width(whole)) == whole
    widths = [natural_width(fit_to_width(whole, width)) for width in range(natural_width(whole), 0, -1)]
    assert widths == sorted(widths, reverse=True)
    names = [column.name for column in fit_to_width(whole, 1).columns]
    assert names == ["NAME", "STATUS", "DETAIL"]
    shown = drawn_at_a_terminal(whole, 80, color_system=None).splitlines()
    assert len(shown) == 2
    assert max(map(len, shown)) <= 80


def words_of(drawn: Renderable) -> str:
    """The words of the first row."""
    return " ".join(to_text(drawn).splitlines()[1].split())


def test_users_tokens_and_sessions_are_readable() -> None:
    user = {"id": "u1", "username": "eve", "is_admin": True, "is_active": False, "max_running": None, "created_at": AT}
    assert words_of(render_users.users([user], NOW)) == "eve admin no default 3 min ago u1"
    token: Record = {"id": "t1", "label": "ci", "scopes": [], "created_at": AT, "last_used_at": None, "expires_at": None}
    assert words_of(render_users.tokens([token], NOW)) == "t1 ci - 3 min ago never never"
    session = {
        "id": "s1",
        "came_from": "192.0.2.1",
        "user_agent": "\x1b[2JFirefox",
        "created_at": AT,
        "last_used_at": None,
        "expires_at": AT,
    }
    assert words_of(render_users.sessions([session], NOW)).startswith("s1 192.0.2.1 \\x1b[2JFirefox")
    refused = {
        "at": AT,
        "username": "eve",
        "how": "NOBODY",
        "token_label": "",
        "came_from": "192.0.2.1",
        "action": "session.refused",
        "workspace": "",
        "outcome": "bad_credentials",
        "detail": {"tried": 3},
    }
    expected = f"{AT} eve session.refused - bad_credentials tried 3 nobody 192.0.2.1"
    assert words_of(render_users.audit([refused], str)) == expected
