"""A typed client of a CoMoE server.

    from comoe import Client

    with Client("127.0.0.1:50051") as client:
        for chunk in client.stream("Call me", max_tokens=40):
            print(chunk.text, end="", flush=True)
        print(client.generate("Call me", temperature=0).text)

It needs grpcio, protobuf and the stubs that `generate_stubs.sh` makes of the .proto files.
"""

import importlib

# Imported when first used: the reflection client uses this package without any stubs.
_WHERE = {
    "Client": "client", "Stream": "client",
    "Choice": "types", "Chunk": "types", "Completion": "types", "Timing": "types", "Token": "types", "Usage": "types",
    "ComoeError": "errors", "RetryPolicy": "retry",
}
__all__ = sorted(_WHERE)


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module 'comoe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"comoe.{_WHERE[name]}"), name)
