"""The commands of ``build.py``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from tabhelm_build.bootstrap import fail
from tabhelm_build.bundle import DIST, ROOT, build_bundle


def main(arguments: list[str]) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="build.py", description="Build, test and demonstrate tabhelm.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="the demo app on 127.0.0.1, by hand or played by real tabs")
    demo.add_argument("--port", type=int, default=8765, help="default 8765; 0 takes a free one")
    demo.add_argument("--no-open", action="store_true", help="do not open a browser")
    demo.add_argument("--play", action="store_true", help="let real headless tabs play it, and print a verdict")
    demo.add_argument("--json", action="store_true", help="with --play: print one JSON object")
    bundle = commands.add_parser("bundle", help="make dist/")
    bundle.add_argument("--out", type=Path, default=DIST, help="another folder than dist/")
    bundle.add_argument("--build-tag", default="", help="make a different build of the same sources")
    commands.add_parser("test", help="style, types and tests: test [unit|e2e|all|thorough] [what pytest understands]")
    commands.add_parser("bench", help="benchmarks beside raw browser APIs and other queues: bench [--only PART]")
    if arguments[:1] == ["test"]:
        # Past argparse, which cannot tell pytest's arguments (-k name) from ours.
        from tabhelm_build.checks import test as run_tests

        given = len(arguments) > 1 and arguments[1] in ("unit", "e2e", "all", "thorough")
        return run_tests(arguments[1] if given else "all", arguments[2 if given else 1 :])
    if arguments[:1] == ["bench"] and "--help" not in arguments:
        return _bench(arguments[1:])  # it knows its parts
    options = parser.parse_args(arguments)
    match options.command:
        case "bundle":
            build_bundle(options.out, tag=options.build_tag)
            return 0
        case _:
            return _demo(options)


def _demo(options: argparse.Namespace) -> int:
    build_bundle()
    if options.play:
        from tabhelm_build.browsers import find_chromium
        from tabhelm_build.play import main as play

        find_chromium()
        return play(["--json"] if options.json else [])
    if options.json:
        fail("--json goes with demo --play")
    from tabhelm_build.demo_server import main as serve

    return serve(["--port", str(options.port), *(["--no-open"] if options.no_open else [])])


def _bench(arguments: list[str]) -> int:
    if not (ROOT / "e2e" / "bench" / "run.py").exists():
        fail("this version has no benchmarks")
    build_bundle()
    from tabhelm_build.browsers import find_chromium

    find_chromium()
    sys.path.insert(0, str(ROOT))
    return int(import_module("e2e.bench.run").main(arguments))
