"""A client process that is killed: it sends what it is told to, says how far its streams are, and waits for its end.

    doomed_client.py ADDRESS    with the folders of the stubs in PYTHONPATH

On stdin a line: the path of a file with a GenerateStreamRequest, and how many streams to open with it. On stdout the
word "sent" once they are open, and "begun" for each stream when its first Delta comes.
"""

import sys
import threading

import grpc

from comoe.v1 import inference_pb2, inference_pb2_grpc


def read(call):
    deltas = (event for event in call if event.WhichOneof("event") == "delta")
    for i, _ in enumerate(deltas):
        if i == 0:
            print("begun", flush=True)


def main():
    with grpc.insecure_channel(sys.argv[1]) as channel:
        path, count = sys.stdin.readline().split()
        with open(path, "rb") as file:
            request = inference_pb2.GenerateStreamRequest.FromString(file.read())
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [stub.GenerateStream(request) for _ in range(int(count))]
        print("sent", flush=True)
        for call in calls:
            threading.Thread(target=read, args=(call,), daemon=True).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
