"""The protobuf messages of Perfetto that timelines use, built from one table at import.

The table becomes a FileDescriptorProto in a pool of its own, so that Perfetto's own Python package can be imported in
the same process.

Source: protos/perfetto/trace/perfetto_trace.proto of Perfetto 58.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "perfetto.protos"
_FIELDS = {
    "Trace": "1 packet TracePacket*",
    "TracePacket": "8 timestamp uint64, 10 trusted_packet_sequence_id uint32, 11 track_event TrackEvent, "
    "12 interned_data InternedData, 13 sequence_flags uint32, 60 track_descriptor TrackDescriptor",
    "TrackDescriptor": "1 uuid uint64, 2 name string, 3 process ProcessDescriptor, 5 parent_uuid uint64, "
    "8 counter CounterDescriptor, 11 child_ordering int32, 12 sibling_order_rank int32",
    "ProcessDescriptor": "1 pid int32, 6 process_name string",
    "CounterDescriptor": "6 unit_name string",
    "InternedData": "2 event_names InternedName*, 3 debug_annotation_names InternedName*",
    "InternedName": "1 iid uint64, 2 name string",
    "TrackEvent": "4 debug_annotations DebugAnnotation*, 9 type int32, 10 name_iid uint64, 11 track_uuid uint64, "
    "30 counter_value int64, 44 double_counter_value double, 47 flow_ids fixed64*, 48 terminating_flow_ids fixed64*",
    "DebugAnnotation": "1 name_iid uint64, 4 int_value int64, 5 double_value double, 6 string_value string",
}
"""Fields of each message: number, name and type, with a star if repeated. Enums are int32, EventName and
DebugAnnotationName are InternedName: the bytes are the same."""


def _trace_class() -> Any:  # noqa: ANN401 - classes of messages have no types
    """Return the class of Perfetto's Trace, which creates the classes of all other messages."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="perfetto_trace.proto", package=_PACKAGE, syntax="proto2")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for text in fields.split(", "):
            number, name, kind = text.split()
            field = described.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            if kind.rstrip("*") in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind.rstrip('*')}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.rstrip('*').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Trace"))


Trace = _trace_class()
