# SPDX-License-Identifier: Apache-2.0

"""Leaves a process alone, and comes back to it at the byte that was read last."""

from boxd import Client, Output

with Client().create_session() as session:
    process = session.start_process("server", "cat", stdin=True, lease="5m")
    with process.attach(write=True) as stream:
        stream.write(b"first\n")
        item = next(stream)
        assert isinstance(item, Output)
        print(item.offset, item.text, end="")
        read = stream.stdout

    # Here the program may do something else, or end and be started again: it only has to keep the number.

    with process.attach(write=True, take_over=True, stdout=read) as stream:
        stream.write(b"second\n")
        stream.close_stdin()
        for item in stream:
            if isinstance(item, Output):
                print(item.offset, item.text, end="")
    print(process.wait().state)
