"""A client of its own making, below gRPC: it opens a server stream and then does not read, in one of two ways."""

import socket
import struct
import threading

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_MAX_WINDOW = 2**31 - 1
_STREAM = 1


def _frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(text):
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _headers(path):
    headers = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
               ("te", "trailers"), ("content-type", "application/grpc"))
    return b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in headers)


class UnreadStream:
    """A GenerateStream whose messages nobody takes. Use as a context.

    grants_window: False: the frames are read, but HTTP/2's window for data stays 0, so that no message may be sent.
    True: data may be sent, but nothing is ever read from the socket.
    """

    def __init__(self, address, message, grants_window=False):
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        self._lock = threading.Lock()
        self._reset = threading.Event()
        self._closed = threading.Event()
        self.data_bytes = 0
        if grants_window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connect, to bound it
        self._socket.connect((host, int(port)))
        window = _MAX_WINDOW if grants_window else 0
        body = message.SerializeToString()
        self._send(_PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
                   + _frame(_HEADERS, _END_HEADERS, _STREAM, _headers("/comoe.v1.InferenceService/GenerateStream"))
                   + _frame(_DATA, _END_STREAM, _STREAM, struct.pack(">BI", 0, len(body)) + body))
        self._thread = None if grants_window else threading.Thread(target=self._read, daemon=True)
        if self._thread is not None:
            self._thread.start()

    def _send(self, data):
        with self._lock:
            self._socket.sendall(data)

    def _receive(self, count):
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data

    def _read(self):
        try:
            while True:
                header = self._receive(9)
                kind, flags = header[3], header[4]
                payload = self._receive(int.from_bytes(header[:3], "big"))
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    self._send(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                elif kind == _DATA:
                    self.data_bytes += len(payload)
                elif kind == _RST_STREAM:
                    self._reset.set()
        except OSError:
            self._closed.set()

    def wait_reset(self, timeout_s):
        """True once the server has ended the stream by force: a status waits behind data, and data may not be sent."""
        return self._reset.wait(timeout_s)

    @property
    def connected(self):
        return not self._closed.is_set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server was quicker
        if self._thread is not None:
            self._thread.join(10)
        self._socket.close()
