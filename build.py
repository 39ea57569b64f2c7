#!/usr/bin/env python3
"""Build, test and demonstrate tabhelm. Starts on plain CPython 3.11 or newer with nothing installed.

python build.py demo             the demo at http://127.0.0.1:8765/
python build.py demo --play      the demo played by real tabs, with a verdict
python build.py test             all tests (unit | e2e to choose, pytest's options behind)
python build.py bundle           dist/: what a web app serves
python build.py bench            benchmarks beside raw browser APIs
"""

import sys

# In words that every Python reads, the second one too: this line is for whoever starts a wrong one.
if sys.version_info < (3, 11):
    version = sys.version.split()[0]
    sys.exit("build.py: tabhelm needs Python 3.11 or newer; this is " + version + ". Run: python3.11 build.py")

import os

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, "py_src"))

if __name__ == "__main__":
    from tabhelm_build.bootstrap import enter_environment

    enter_environment(ROOT)

    from tabhelm_build.cli import main

    sys.exit(main(sys.argv[1:]))
