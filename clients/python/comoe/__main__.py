"""Completes a prompt: python3 -m comoe "Call me" --max-tokens 40. The text goes to stdout as it comes."""

import argparse
import sys

from comoe.client import Client
from comoe.errors import ComoeError
from comoe.progress import Progress


def main():
    parser = argparse.ArgumentParser(prog="python3 -m comoe", description="Completes a prompt through a CoMoE server.")
    parser.add_argument("prompt")
    parser.add_argument("--server", default="127.0.0.1:50051", help="HOST:PORT (%(default)s)")
    parser.add_argument("--timeout", type=float, help="deadline in seconds (none)")
    parser.add_argument("--max-tokens", type=int, help="longest completion (the server's default)")
    parser.add_argument("--temperature", type=float, help="0 is greedy (the model's default)")
    parser.add_argument("--seed", type=int, help="repeats a completion (one is drawn)")
    parser.add_argument("--stop", action="append", default=[], help="ends the completion; may be given several times")
    parser.add_argument("--quiet", action="store_true", help="no bar, no summary")
    arguments = parser.parse_args()
    options = {name: value for name in ("max_tokens", "temperature", "seed", "stop")
               if (value := getattr(arguments, name)) not in (None, [])}
    # The text itself shows the progress when it goes to the same terminal.
    bar = None if arguments.quiet or sys.stdout.isatty() else Progress(arguments.max_tokens or 0)
    try:
        with Client(arguments.server, arguments.timeout) as client, client.stream(arguments.prompt, **options) as stream:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
                if bar is not None:
                    bar.add(len(chunk.tokens))
        print(flush=True)
    except ComoeError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if bar is not None:
            bar.close()
    if not arguments.quiet:
        completion = stream.completion
        print(f"{completion.finish_reason}: {completion.usage.completion_tokens} tokens, seed {completion.seed}",
              file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
