#!/usr/bin/env python3
"""Talks to a CoMoE server (or any gRPC server with reflection) without generated code.

  comoe_client.py [--server HOST:PORT] list
  comoe_client.py [--server HOST:PORT] describe comoe.v1.InferenceService
  comoe_client.py [--server HOST:PORT] call comoe.v1.InferenceService/Generate '{"text": "Call me"}'
  comoe_client.py [--server HOST:PORT] health [comoe.v1.InferenceService]

`call` prints one JSON object a message, for streams as they come. An error is one line on stderr, `CODE: message`,
and exit code 1. Needs grpcio and protobuf (Debian: python3-grpcio python3-protobuf, run with /usr/bin/python3).
The server offers reflection when it listens on loopback.
"""

import argparse
import json
import sys

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; on Debian: apt-get install python3-grpcio python3-protobuf, then run with /usr/bin/python3")

from comoe.dynamic_messages import make_messages, message_class

REFLECTION_PACKAGE = "grpc.reflection.v1alpha"
HEALTH_PACKAGE = "grpc.health.v1"
HEALTH_STATES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}

# The few messages of the two standard protocols that are needed, as make_messages takes them.
REFLECTION_MESSAGES = {
    "ServerReflectionRequest": [
        ("file_by_filename", 3, "string", False),
        ("file_containing_symbol", 4, "string", False),
        ("list_services", 7, "string", False),
    ],
    "ServerReflectionResponse": [
        ("file_descriptor_response", 4, "FileDescriptorResponse", False),
        ("list_services_response", 6, "ListServiceResponse", False),
        ("error_response", 7, "ErrorResponse", False),
    ],
    "FileDescriptorResponse": [("file_descriptor_proto", 1, "bytes", True)],
    "ListServiceResponse": [("service", 1, "ServiceResponse", True)],
    "ServiceResponse": [("name", 1, "string", False)],
    "ErrorResponse": [("error_code", 1, "int32", False), ("error_message", 2, "string", False)],
}
HEALTH_MESSAGES = {
    "HealthCheckRequest": [("service", 1, "string", False)],
    "HealthCheckResponse": [("status", 1, "int32", False)],
}


class ClientError(Exception):
    """Something the user can understand and mend."""


class Client:
    """One server, its services found by reflection. Not thread-safe."""

    def __init__(self, channel, timeout_s=None):
        self._channel = channel
        self._timeout_s = timeout_s
        self._reflection = make_messages(REFLECTION_PACKAGE, REFLECTION_MESSAGES)
        self._pool = descriptor_pool.DescriptorPool()
        self._loaded = set()  # file names

    def _ask(self, **question):
        call = self._channel.stream_stream(
            f"/{REFLECTION_PACKAGE}.ServerReflection/ServerReflectionInfo",
            request_serializer=self._reflection["ServerReflectionRequest"].SerializeToString,
            response_deserializer=self._reflection["ServerReflectionResponse"].FromString)
        answers = call(iter([self._reflection["ServerReflectionRequest"](**question)]), timeout=10)
        answer = next(answers)
        if answer.HasField("error_response"):
            raise ClientError(f"{next(iter(question.values()))}: {answer.error_response.error_message}")
        return answer

    def _load(self, **question):
        files = [descriptor_pb2.FileDescriptorProto.FromString(data)
                 for data in self._ask(**question).file_descriptor_response.file_descriptor_proto]
        for file in files:
            if file.name in self._loaded:
                continue
            self._loaded.add(file.name)
            for dependency in file.dependency:
                if dependency not in self._loaded:
                    self._load(file_by_filename=dependency)
            self._pool.AddSerializedFile(file.SerializeToString())

    def services(self):
        """Names of all services."""
        return [service.name for service in self._ask(list_services="").list_services_response.service]

    def service(self, name):
        """The descriptor of one."""
        self._load(file_containing_symbol=name)
        return self._pool.FindServiceByName(name)

    def message(self, name, values=None):
        """A message of a service that was loaded, from a dictionary as JSON has it."""
        cls = message_class(self._pool.FindMessageTypeByName(name))
        try:
            return json_format.ParseDict(values or {}, cls())
        except json_format.ParseError as error:
            raise ClientError(f"{name}: {error}") from error

    def call(self, path, request=None, timeout_s=None):
        """Calls SERVICE/METHOD with a dictionary; yields each answer as one."""
        service, _, name = path.rpartition("/")
        methods = self.service(service).methods_by_name if service else {}
        if name not in methods:
            raise ClientError(f"{path}: no such method; it is SERVICE/METHOD, and `list` and `describe` show them")
        method = methods[name]
        message = self.message(method.input_type.full_name, request)
        # A unary method is a stream of one answer.
        call = self._channel.unary_stream(
            "/" + path, request_serializer=type(message).SerializeToString,
            response_deserializer=message_class(method.output_type).FromString)
        for answer in call(message, timeout=timeout_s or self._timeout_s):
            yield json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def health(self, service=""):
        """SERVING, NOT_SERVING, ... of grpc.health.v1."""
        messages = make_messages(HEALTH_PACKAGE, HEALTH_MESSAGES)
        check = self._channel.unary_unary(
            f"/{HEALTH_PACKAGE}.Health/Check",
            request_serializer=messages["HealthCheckRequest"].SerializeToString,
            response_deserializer=messages["HealthCheckResponse"].FromString)
        return HEALTH_STATES.get(check(messages["HealthCheckRequest"](service=service), timeout=10).status, "UNKNOWN")


def describe(client, name):
    for method in client.service(name).methods:
        proto = descriptor_pb2.MethodDescriptorProto()
        method.CopyToProto(proto)
        stream = "stream " if proto.server_streaming else ""
        print(f"{name}/{method.name}({method.input_type.full_name}) returns ({stream}{method.output_type.full_name})")
        for field in method.input_type.fields:
            kind = field.message_type.full_name if field.message_type else \
                descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)[len("TYPE_"):].lower()
            print(f"  {field.name}: {kind}")


def run(arguments, channel):
    client = Client(channel, arguments.timeout)
    if arguments.command == "list":
        print("\n".join(client.services()))
    elif arguments.command == "describe":
        describe(client, arguments.name)
    elif arguments.command == "health":
        state = client.health(arguments.name or "comoe.v1.InferenceService")
        print(state)
        return 0 if state == "SERVING" else 1
    else:
        try:
            request = json.loads(arguments.request)
        except json.JSONDecodeError as error:
            raise ClientError(f"the request is not JSON: {error}") from error
        for answer in client.call(arguments.name, request):
            print(json.dumps(answer, ensure_ascii=False), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description="Calls a gRPC server through reflection.")
    parser.add_argument("--server", default="127.0.0.1:50051", help="HOST:PORT (%(default)s)")
    parser.add_argument("--timeout", type=float, help="deadline of a call in seconds (none)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names of all services")
    commands.add_parser("describe", help="a service's methods and their fields").add_argument("name", metavar="SERVICE")
    call = commands.add_parser("call", help="call a method")
    call.add_argument("name", metavar="SERVICE/METHOD", help="as `describe SERVICE` names it")
    call.add_argument("request", metavar="JSON", nargs="?", default="{}", help="the request's fields, {} for none")
    commands.add_parser("health", help="exit 0 only if SERVING").add_argument("name", metavar="SERVICE", nargs="?")
    arguments = parser.parse_args()
    try:
        with grpc.insecure_channel(arguments.server) as channel:
            return run(arguments, channel)
    except grpc.RpcError as error:
        hint = ""
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            hint = " (is a comoe serve running there?)"
        elif error.code() == grpc.StatusCode.UNIMPLEMENTED and not error.details():
            hint = "the server offers no reflection: it does so when it listens on loopback"
        print(f"{error.code().name}: {error.details()}{hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except (ClientError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
