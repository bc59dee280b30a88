# SPDX-License-Identifier: Apache-2.0
"""Tries to get out. Every attempt must fail; one that does not ends this program with 1."""
import ctypes
import os
import socket
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)


def syscall_error(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read_shadow():
    open("/etc/shadow").read()


def host_processes():
    others = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
    if not others:
        raise OSError("/proc shows this process alone")


def signal_init():
    os.kill(1, 9)


def network():
    socket.create_connection(("192.0.2.1", 80), timeout=3)


def host_sockets():
    socket.socket(socket.AF_UNIX).connect("/run/boxd/boxd.sock")


def mount():
    syscall_error(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))


def write_usr():
    open("/usr/bin/hostile", "w")


def write_etc():
    open("/etc/passwd", "a")


def new_user_namespace():
    syscall_error(libc.unshare(0x10000000))


def become_root():
    os.setuid(0)


def load_module():
    syscall_error(libc.syscall(175, b"", 0, b""))


def kernel_memory():
    if not open("/proc/kallsyms").read(64):
        raise OSError("/proc/kallsyms is empty here")


def fork_bomb():
    children = []
    try:
        for _ in range(100000):
            children.append(subprocess.Popen(["sleep", "60"]))
    finally:
        for child in children:
            child.kill()


def fill_memory_disk():
    with open("/tmp/fill", "wb") as f:
        try:
            for _ in range(1 << 20):
                f.write(b"\0" * (1 << 20))
        finally:
            os.unlink("/tmp/fill")


ATTEMPTS = [
    ("read /etc/shadow", read_shadow),
    ("see processes of the host", host_processes),
    ("kill PID 1", signal_init),
    ("reach the network", network),
    ("reach boxd's own socket", host_sockets),
    ("mount something", mount),
    ("write to /usr", write_usr),
    ("write to /etc", write_etc),
    ("make a user namespace", new_user_namespace),
    ("become root", become_root),
    ("load a kernel module", load_module),
    ("read kernel addresses", kernel_memory),
    ("fork without end", fork_bomb),
    ("fill /tmp without end", fill_memory_disk),
]

succeeded = 0
for name, attempt in ATTEMPTS:
    try:
        attempt()
    except (OSError, ValueError) as e:
        print(f"  refused   {name:<28} {e.strerror if isinstance(e, OSError) and e.strerror else e}")
    else:
        succeeded += 1
        print(f"  GOT OUT   {name}")
sys.exit(1 if succeeded else 0)
