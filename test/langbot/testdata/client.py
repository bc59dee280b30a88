# SPDX-License-Identifier: Apache-2.0
"""A client of LangBot's action RPC: python3 and its sockets alone. Usage: client.py HOST PORT INSTANCE"""
import json
import os
import socket
import struct
import sys


def read(sock, size):
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise SystemExit("the connection has ended")
        data += more
    return data


def send(sock, text, piece=65536):
    """One message, in frames as long as those of LangBot's client."""
    data = text.encode()
    parts = [data[i:i + piece] for i in range(0, len(data), piece)] or [b""]
    for i, part in enumerate(parts):
        head = bytes([(0x80 if i == len(parts) - 1 else 0) | (1 if i == 0 else 0)])
        size = len(part)
        head += bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 65536 else b"\xff" + struct.pack(">Q", size)
        mask = os.urandom(4)
        sock.sendall(head + mask + bytes(b ^ mask[j % 4] for j, b in enumerate(part)))


def receive(sock):
    text = b""
    while True:
        first, second = read(sock, 2)
        size = second & 0x7F
        if size > 125:
            size = struct.unpack(">H", read(sock, 2))[0] if size == 126 else struct.unpack(">Q", read(sock, 8))[0]
        part = read(sock, size)
        if first & 0x0F in (0, 1):
            text += part
            if first & 0x80:
                return json.loads(text)


def main():
    host, port, instance = sys.argv[1:]
    sock = socket.create_connection((host, int(port)))
    sock.sendall((
        f"GET /rpc/ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        f"X-LangBot-Instance-Id: {instance}\r\n\r\n").encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += read(sock, 1)
    if not answer.startswith(b"HTTP/1.1 101 ") or b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" not in answer:
        raise SystemExit(answer.decode())
    context = {"instance_uuid": instance, "workspace_uuid": "python", "placement_generation": 1}
    filler = "# " + "x" * 200000 + "\n"  # so that it comes in several frames
    for seq, (action, data) in enumerate([
        ("__ping", {}),
        ("box_init", {"backend": "local", "limits": {"max_sessions": 64}}),
        ("box_create_session", {"session_id": "py", "cmd": "", "host_path": None}),
        ("box_exec", {"session_id": "py", "cmd": filler + "echo hello from python", "timeout_sec": 30}),
        ("box_delete_session", {"session_id": "py"}),
    ], 1000):
        message = {"seq_id": seq, "action": action, "data": data}
        if not action.startswith("__") and action != "box_init":
            message["context"] = context
        send(sock, json.dumps(message))
        reply = receive(sock)
        if reply["seq_id"] != seq or reply["code"] != 0 or reply["chunk_status"] != "continue":
            raise SystemExit(f"{action}: {reply}")
        if action == "box_exec":
            print(reply["data"]["stdout"])


main()
