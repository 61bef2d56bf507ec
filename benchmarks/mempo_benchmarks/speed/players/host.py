"""Carry out one order for one system in this process: JSON in by stdin, one line of JSON out by stdout.

    PYTHON host.py MODULE < order.json

An order is {"do": name of a function of the module, "with": its keyword arguments}; what the function returns
is the answer. With "passes" beside them, the function returns what is to be timed: it is called so often, and
the answer is {"seconds": of each pass, "results": of each pass}. Before that, "warm", other arguments for the
same function, is played once without a clock.

This file runs in the virtual environments of other projects, so it knows the standard library only.
"""

import gc
import importlib
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Read the order, carry it out, and write what came of it."""
    order = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # whatever a system prints is none of its results
        answer.write(json.dumps(carry_out(order, importlib.import_module(sys.argv[1]))) + "\n")


def carry_out(order: dict[str, Any], player: Any) -> Any:
    """Call the function of the player that the order names, or time what it returns."""
    function = getattr(player, order["do"])
    if "passes" not in order:
        return function(**order["with"])
    if "warm" in order:
        function(**order["warm"])()
    run = function(**order["with"])
    seconds, results = [], []
    for _ in range(order["passes"]):
        gc.collect()  # what was left before is not on the bill
        began = time.perf_counter()
        results.append(run())
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "results": results}


if __name__ == "__main__":
    main()
