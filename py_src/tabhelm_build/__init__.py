"""What ``build.py`` does: environment, bundle, browsers, checks, demo server. CPython only; not part of the wheel."""
