import os
import stat
import subprocess
import sys

import pytest

from jaxcomet.cli import files
from jaxcomet.cli.errors import InputError
from jaxcomet.cli.files import check_writable, read_csv, read_text, write_whole


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    file = tmp_path / "out.csv"
    file.write_text("old")
    file.chmod(0o640)
    write_whole(str(file), "new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_has_the_usual_permissions(tmp_path):
    file, other = tmp_path / "out.csv", tmp_path / "other"
    write_whole(str(file), b"new")
    other.write_bytes(b"new")
    assert file.stat().st_mode == other.stat().st_mode


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "out.csv"
    file.write_text("old")

    def fail(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(InputError, match="no space left on device"):
        write_whole(str(file), "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link(tmp_path):
    file, link = tmp_path / "out.csv", tmp_path / "link.csv"
    file.write_text("old")
    link.symlink_to(file)
    write_whole(str(link), "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced():
    write_whole(os.devnull, "gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="permission denied"):
        check_writable(str(tmp_path / "out.csv"))


def test_text_that_is_not_utf8_is_refused(tmp_path):
    file = tmp_path / "in.csv"
    file.write_bytes(b"M,N\n\xff")
    with pytest.raises(InputError, match="byte 4 that is not UTF-8"):
        read_text(str(file))


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    file = tmp_path / "in.csv"
    file.write_bytes(b"\xef\xbb\xbfM,N\r\n1,2\r\n\r\n3,4\r\n")
    table = read_csv(str(file))
    assert table.columns == ("M", "N")
    assert table.rows == (("1", "2"), ("3", "4"))
    assert table.lines == (2, 4)


def test_the_module_runs_as_the_console_script_does():
    command = [sys.executable, "-m", "jaxcomet.cli.main"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("jaxcomet ")
    bad = subprocess.run([*command, "machines", "egde"], capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stdout == ""
    assert bad.stderr.startswith("error: ")
