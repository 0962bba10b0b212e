"""Help texts keep their examples readable."""

import pytest

COMMANDS = ("machines", "conventions", "evaluate", "compare", "map", "codesign")


@pytest.mark.parametrize("words", [(), *((c,) for c in COMMANDS)], ids=lambda w: " ".join(w))
def test_examples_stand_in_lines_of_their_own(cli, words: tuple[str, ...]):
    result = cli(*words, "--help")
    assert result.exit_code == 0
    assert "\\b" not in result.stdout
    shown = [
        x for x in result.stdout.splitlines() if x.startswith(f"    jaxcomet {' '.join(words)}")
    ]
    assert shown, result.stdout
