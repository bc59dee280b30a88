# SPDX-License-Identifier: Apache-2.0

"""Writes, changes, finds and watches files, and copies a directory out."""

from boxd import Client, NotFound

with Client().create_session() as session:
    files = session.files
    files.write("src/main.py", "print('one')\n")
    files.edit("src/main.py", {"old": "one", "new": "two"})
    print(files.read_text("src/main.py"), end="")
    print(*(entry.path for entry in files.list("src").entries))

    with files.watch("src") as watch:
        files.write("src/other.py", b"")
        for event in watch:
            if event.event == "create" and event.path == "other.py":
                print("created", event.path)
                break

    with files.download_archive("src") as archive:
        files.upload_archive(archive.read(), "copy")
    print(*(entry.path for entry in files.glob("copy/*.py", sort="name").entries))

    try:
        files.read("src/nothing")
    except NotFound as error:
        print(error.code, error.file_kind)
