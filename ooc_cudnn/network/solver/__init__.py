"""Linear and mixed-integer programs, solved by HiGHS."""
