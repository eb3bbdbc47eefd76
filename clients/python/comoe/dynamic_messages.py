"""Messages of standard protocols, made at run time from a table: no generated code, no further package."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def message_class(descriptor):
    """The Python class of a message; the way to it changed between versions of protobuf."""
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(descriptor.file.pool).GetPrototype(descriptor)


def make_messages(package, messages):
    """{message: class} of {message: [(field, number, type, repeated)]}.

    A type that is no scalar names a message of the same package. Fields of a oneof need no mark: on the wire they are
    like others.
    """
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": field_type.TYPE_STRING, "bytes": field_type.TYPE_BYTES, "int32": field_type.TYPE_INT32,
               "int64": field_type.TYPE_INT64}
    # proto2, so that a present but empty field goes over the wire.
    file = descriptor_pb2.FileDescriptorProto(name=package + ".proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in scalars:
                field.type = scalars[kind]
            else:
                field.type = field_type.TYPE_MESSAGE
                field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_class(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
