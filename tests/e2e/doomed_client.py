"""A client process that is killed: it sends what it is told to, says how far its streams are, and waits for its end.

    doomed_client.py ADDRESS    with the folders of the stubs in PYTHONPATH

On stdin a line: the path of a file with a GenerateStreamRequest, and how many streams to open with it. On stdout the
word "ready" at the start, "sent" once they are open, and "begun" for each stream when its first Delta comes.
"""

import os
import sys
import threading

import grpc

from comoe.v1 import inference_pb2, inference_pb2_grpc


def say(word):
    os.write(sys.stdout.fileno(), f"{word}\n".encode())  # at once: print writes the end of a line apart, and threads mix


def read(call):
    deltas = (event for event in call if event.WhichOneof("event") == "delta")
    for i, _ in enumerate(deltas):
        if i == 0:
            say("begun")


def main():
    with grpc.insecure_channel(sys.argv[1]) as channel:
        say("ready")
        path, count = sys.stdin.readline().split()
        with open(path, "rb") as file:
            request = inference_pb2.GenerateStreamRequest.FromString(file.read())
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [stub.GenerateStream(request) for _ in range(int(count))]
        say("sent")
        for call in calls:
            threading.Thread(target=read, args=(call,), daemon=True).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
