"""One side of RPC over TLS (RFC 9289) on OpenSSL: CASE ADDRESS DIR."""
import socket, ssl, struct, sys

case, address, directory = sys.argv[1:]
host, port = address.rsplit(":", 1)


def record(*words, body=b""):
    message = struct.pack(f">{len(words)}I", *words) + body
    return struct.pack(">I", 0x80000000 | len(message)) + message


def receive(stream):
    """A record, or None at the end of the stream."""
    def exactly(count):
        data = b""
        while len(data) < count:
            try:
                more = stream.recv(count - len(data))
            except ConnectionError:
                more = b""
            if not more:
                return None
            data += more
        return data

    mark = exactly(4)
    return mark and exactly(struct.unpack(">I", mark)[0] & 0x7FFFFFFF)


def context(purpose):
    made = ssl.SSLContext(purpose)
    made.load_verify_locations(f"{directory}/ca.pem")
    made.load_cert_chain(f"{directory}/cert.pem", f"{directory}/key.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    if not case.endswith("unnamed"):
        made.set_alpn_protocols(["sunrpc"])
    if case == "old":
        made.maximum_version = ssl.TLSVersion.TLSv1_2
    return made


NULL = (7, 0, 2, 100003, 3, 0)
PROBE = record(*NULL, 7, 0, 0, 0)
STARTTLS = (1, 0, 0, 8)


def call():
    plain = socket.create_connection((host, int(port)), timeout=20)
    if case == "plain":
        plain.sendall(record(*NULL, 0, 0, 0, 0))
        words = struct.unpack(">5I", receive(plain))
        assert words[:4] == (7, 1, 1, 1), words
        return f"denied {words[4]}, " + ("closed" if receive(plain) is None else "open")
    if case == "early":
        # What is sent behind the probe must not become a part of the session.
        plain.sendall(PROBE + record(*NULL, 0, 0, 0, 0))
        reply = receive(plain)
        return "closed" if reply is None else f"answered {reply}"
    plain.sendall(PROBE)
    reply = receive(plain)
    assert reply == struct.pack(">5I", 7, 1, 0, 0, 8) + b"STARTTLS" + bytes(4), reply
    if case == "noise":
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while True:
            try:
                if not plain.recv(4096):
                    return "closed"
            except ConnectionError:
                return "closed"
    try:
        with context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            said = f"{secure.version()} {secure.selected_alpn_protocol()}"
            # Within a session a probe is silently discarded.
            secure.sendall(PROBE + record(8, *NULL[1:], 0, 0, 0, 0))
            reply = receive(secure)
            return "refused" if reply is None else f"{said}, answered" if reply == struct.pack(">6I", 8, 1, 0, 0, 0, 0) else repr(reply)
    except (ssl.SSLError, ConnectionError):
        return "refused"


def serve():
    listener = socket.create_server((host, int(port)))
    print(f"ready nfs-tls {host}:{listener.getsockname()[1]}", flush=True)
    while True:
        plain, _ = listener.accept()
        plain.settimeout(20)
        try:
            probe = receive(plain)
            xid = struct.unpack(">I", probe[:4])[0]
            assert probe[4:12] == struct.pack(">2I", 0, 2) and probe[20:] == struct.pack(">5I", 0, 7, 0, 0, 0), probe
            if case == "serve-plain":
                plain.sendall(record(xid, 1, 1, 1, 2))
            elif case == "serve-long":
                plain.sendall(struct.pack(">I", 0x80000000 | 1 << 30) + bytes(4096))
            else:
                plain.sendall(record(xid, 1, 0, 0, 8, body=b"STARTTLS" + bytes(4)))
            if case == "serve-noise":
                plain.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            with context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True) as secure:
                while (message := receive(secure)) is not None:
                    secure.sendall(record(struct.unpack(">I", message[:4])[0], 1, 0, 0, 0, 1))
        except (OSError, TypeError):
            pass
        plain.close()


if case.startswith("serve"):
    serve()
else:
    print(call())
