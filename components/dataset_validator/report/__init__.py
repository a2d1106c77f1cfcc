"""The validation report and the pages of `detloom inspect`: JSON for programs, HTML for people."""
