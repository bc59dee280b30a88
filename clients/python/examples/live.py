# SPDX-License-Identifier: Apache-2.0

"""Shows output as it comes, and answers the program."""

from boxd import Client, Output

with Client().create_session(memory="256MiB") as session:
    with session.stream(command="echo name?; read name; for i in 1 2 3; do echo hello $name $i; done; exit 3", stdin=True) as stream:
        for item in stream:
            if isinstance(item, Output):
                print(item.text, end="")
                if item.text == "name?\n":
                    stream.write(b"world\n")
        assert stream.result is not None
        print(stream.result.status, stream.result.exit_code)
