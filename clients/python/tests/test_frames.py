# SPDX-License-Identifier: Apache-2.0

"""Frames, addresses and answers, without a connection."""

from __future__ import annotations

import os
import struct
import unittest
from typing import List, Tuple

from boxd import Conflict, Problem, ProtocolError, answers
from boxd._address import Address
from boxd._decode import decode
from boxd._frames import BINARY, CLOSE, PING, Frames, accept_of, close_reason, encode
from boxd._http import Head, chunk_size, problem, request_head, segment, with_query
from boxd._output import MAX_INPUT, MAX_LINE, Input, Lines


def frame(opcode: int, data: bytes, last: bool = True) -> bytes:
    """A frame as a server sends it."""
    first = opcode | (0x80 if last else 0)
    if len(data) < 126:
        return struct.pack("!BB", first, len(data)) + data
    if len(data) < 1 << 16:
        return struct.pack("!BBH", first, 126, len(data)) + data
    return struct.pack("!BBQ", first, 127, len(data)) + data


def messages(data: bytes, step: int) -> List[Tuple[int, bytes]]:
    """What comes of bytes that come in pieces."""
    frames, found = Frames(), []
    for at in range(0, len(data), step):
        frames.feed(data[at : at + step])
        while True:
            message = frames.next()
            if message is None:
                break
            found.append(message)
    return found


class FramesTest(unittest.TestCase):
    def test_messages_are_the_same_however_they_are_cut(self) -> None:
        big = os.urandom(70000)
        data = frame(BINARY, b"one") + frame(PING, b"?") + frame(BINARY, b"t", False) + frame(PING, b"!") + frame(0, b"w", False) + frame(0, b"o")
        data += frame(BINARY, big) + frame(BINARY, b"x" * 200) + frame(CLOSE, b"\x03\xe8bye")
        want = [(BINARY, b"one"), (PING, b"?"), (PING, b"!"), (BINARY, b"two"), (BINARY, big), (BINARY, b"x" * 200), (CLOSE, b"\x03\xe8bye")]
        for step in (1, 2, 3, 7, 1000, len(data)):
            self.assertEqual(messages(data, step), want, step)

    def test_what_is_no_frame_is_refused(self) -> None:
        for name, data in {
            "reserved bits": b"\xf2\x00",
            "unknown opcode": b"\x83\x00",
            "masked": b"\x82\x81abcd1",
            "long ping": b"\x89\x7e\x00\x80",
            "fragmented close": b"\x08\x00",
            "continuation of nothing": b"\x80\x00",
            "message in a message": b"\x02\x01a\x82\x01b",
            "too long": b"\x82\x7f\x00\x00\x00\x01\x00\x00\x00\x00",
        }.items():
            with self.subTest(name), self.assertRaises(ProtocolError):
                frames = Frames(data)
                while frames.next() is not None:
                    pass

    def test_frames_of_a_client_are_masked(self) -> None:
        for size in (0, 1, 125, 126, 65535, 65536):
            data = os.urandom(size)
            sent = encode(BINARY, data)
            self.assertEqual(sent[0], 0x82)
            self.assertTrue(sent[1] & 0x80)
            at = 2 + {126: 2, 127: 8}.get(sent[1] & 0x7F, 0)
            key, masked = sent[at : at + 4], sent[at + 4 :]
            self.assertEqual(bytes(b ^ key[i % 4] for i, b in enumerate(masked)), data)

    def test_the_key_is_that_of_the_rfc(self) -> None:
        self.assertEqual(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        self.assertEqual(close_reason(b""), (1005, ""))
        self.assertEqual(close_reason(b"\x03\xf0no"), (1008, "no"))


class HTTPTest(unittest.TestCase):
    def test_an_id_is_one_segment(self) -> None:
        for text, want in {"a/b": "a%2Fb", ".": "%2E", "..": "%2E%2E", "a.b": "a.b", "ä?": "%C3%A4%3F", "a%2F": "a%252F"}.items():
            self.assertEqual(segment(text), want)
        with self.assertRaises(ValueError):
            segment("")

    def test_what_is_not_given_is_not_in_the_query(self) -> None:
        self.assertEqual(with_query("/x", [("a", None), ("b", False)]), "/x")
        self.assertEqual(with_query("/x", [("a", True), ("b", "1&2"), ("b", 0)]), "/x?a=true&b=1%262&b=0")

    def test_a_header_cannot_begin_another(self) -> None:
        with self.assertRaises(ValueError):
            request_head("GET", "/", {"Authorization": "Bearer a\r\nX: y"})

    def test_half_heads_and_sizes_are_refused(self) -> None:
        for data in (b"", b"HTTP/1.1", b"HTTP/1.1 abc OK", b"SSH-2.0-OpenSSH", b"HTTP/1.1 200 OK\r\nno colon"):
            with self.subTest(data), self.assertRaises(ProtocolError):
                Head(data)
        with self.assertRaises(ProtocolError):
            Head(b"HTTP/1.1 200 OK\r\nContent-Length: -1").length
        for size in (b"", b"-1", b"+1", b"0x1", b"g", b"1" * 17):
            with self.subTest(size), self.assertRaises(ProtocolError):
                chunk_size(size)
        self.assertEqual(chunk_size(b"1F;name=value"), 31)

    def test_addresses(self) -> None:
        self.assertEqual(Address("/a/b").at, "/a/b")
        self.assertEqual(Address("http://127.0.0.1:5410").at, ("127.0.0.1", 5410))
        self.assertEqual(Address("http://[::1]:80/").at, ("::1", 80))
        self.assertEqual((Address("https://h").at, Address("https://h:1").host), (("h", 443), "h:1"))
        for text in ("ftp://127.0.0.1:1", "https://h/path", "http://127.0.0.1", "http://h:1/path"):
            with self.subTest(text), self.assertRaises(ValueError):
                Address(text)


class AnswersTest(unittest.TestCase):
    def test_answers_of_other_versions(self) -> None:
        got = decode(answers.SessionList, {"sessions": [{"id": "a", "tomorrow": 1, "mounts": [{"source": "/a", "target": "/b"}]}], "more": 2})
        self.assertEqual(got.sessions[0].id, "a")
        self.assertEqual(got.sessions[0].mounts[0].source, "/a")
        self.assertIsNone(got.sessions[0].state)  # an older boxd might not say it
        self.assertEqual(decode(answers.FileEvent, {"event": "create", "from": "x"}).from_, "x")
        others: List[object] = [None, [], "text", 1]
        for data in others:
            with self.assertRaises(ValueError):
                decode(answers.Session, data)

    def test_a_problem_has_the_class_of_its_code(self) -> None:
        head = Head(b"HTTP/1.1 409 Conflict\r\nRetry-After: 3\r\nX-Request-Id: abc")
        got = problem({"type": "urn:boxd:problem:conflict", "title": "conflict", "status": 409, "detail": "no", "field": "memory"}, head)
        self.assertIsInstance(got, Conflict)
        self.assertEqual((got.code, got.status, str(got), got.field, got.retry_after, got.request_id), ("conflict", 409, "no", "memory", 3, "abc"))
        other = problem({"type": "urn:boxd:problem:of_tomorrow", "title": "", "status": 418, "detail": ""})
        self.assertIs(type(other), Problem)
        self.assertEqual(other.code, "of_tomorrow")
        with self.assertRaises(ProtocolError):
            problem({"error": "of another server"})


class InputTest(unittest.TestCase):
    def test_what_is_not_confirmed_is_sent_again(self) -> None:
        input = Input()
        input.begin(10)
        input.add(b"a" * (MAX_INPUT + 5))
        self.assertIsNone(input.next())  # not ready
        input.ready = True
        self.assertEqual(len(input.next() or b""), MAX_INPUT)
        input.was_sent(MAX_INPUT)
        self.assertEqual(len(input.next() or b""), 5)
        input.was_sent(5)
        self.assertIsNone(input.next())
        input.confirm(20)
        self.assertEqual((input.base, input.waiting), (20, MAX_INPUT - 5))
        input.renew()
        self.assertIsNone(input.next())
        input.ready = input.ended = True
        input.confirm(30)  # boxd says what it has had on another connection: it is sent again all the same
        self.assertEqual((input.base, input.waiting), (20, MAX_INPUT - 15))
        self.assertEqual(len(input.next() or b""), MAX_INPUT - 5)
        input.was_sent(MAX_INPUT - 5)
        self.assertEqual(input.base, 30)
        self.assertEqual(input.next(), b"")
        input.was_sent(0)
        self.assertIsNone(input.next())

    def test_a_message_that_is_not_confirmed_counts(self) -> None:
        input = Input()
        input.ready = True
        for n in range(600):
            input.add(b"x")
            if input.next() is None:
                break
            input.was_sent(1)
        self.assertEqual(n, 512)
        input.confirm(1)
        self.assertIsNotNone(input.next())

    def test_lines_are_cut_alike_however_they_are_written(self) -> None:
        data = b"one\n\n\ntwo\r\nthree"
        for step in range(1, len(data) + 1):
            lines = Lines()
            found = [line for at in range(0, len(data), step) for line in lines.cut(data[at : at + step])]
            self.assertEqual([*found, *lines.cut(b"", last=True)], [b"one\n", b"two\r\n", b"three\n"])
            self.assertEqual(list(lines.cut(b"", last=True)), [])

    def test_a_line_has_its_bound(self) -> None:
        lines = Lines()
        self.assertEqual(len(list(lines.cut(b"x" * MAX_LINE + b"\n"))), 1)
        self.assertEqual(list(lines.cut(b"x" * MAX_LINE)), [])
        with self.assertRaises(ValueError):
            list(lines.cut(b"x"))
        with self.assertRaises(ValueError):
            list(lines.cut(b"x" * (MAX_LINE + 1) + b"\n"))

    def test_lines_are_sent_again_whole(self) -> None:
        input = Input(lines=True)
        input.begin(10)
        input.ready = True
        for line in (b"one\n", b"two\n", b"three\n"):
            input.add(line)
        for line in (b"one", b"two"):
            self.assertEqual(input.next(), line)
            input.was_sent(len(line))
        input.confirm(16)  # one, and half of two
        self.assertEqual((input.base, input.waiting), (14, 8))
        input.renew()
        input.ready = input.ended = True
        for line in (b"two", b"three", b""):
            self.assertEqual(input.next(), line)
            input.was_sent(len(line))
        input.confirm(24)
        self.assertEqual((input.base, input.waiting, input.next()), (24, 0, None))


if __name__ == "__main__":
    unittest.main()
