"""What libraries in C print stands beside what was asked for, not in it."""

import os

from ooc_cudnn.cli.stdout import STDOUT, keep_stdout_clean


def test_what_a_library_prints_goes_to_standard_error(capfd):
    print("before")
    with keep_stdout_clean():
        os.write(STDOUT, b"a line of HiGHS\n")
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert err == "a line of HiGHS\n"
