// SPDX-License-Identifier: Apache-2.0

// Writes, changes, finds and watches files, and copies a directory out.

import { Client, NotFoundError } from "boxd-client";

const session = await new Client().createSession();
try {
  const { files } = session;
  await files.write("src/main.py", "print('one')\n");
  await files.edit("src/main.py", [{ old: "one", new: "two" }]);
  process.stdout.write(await files.readText("src/main.py"));
  console.log((await files.list("src")).entries.map((entry) => entry.path).join(" "));

  const watch = await files.watch("src");
  await files.write("src/other.py", "");
  for await (const event of watch) {
    if (event.event === "create" && event.path === "other.py") {
      console.log("created", event.path);
      break;
    }
  }

  const archive = await (await files.downloadArchive("src")).read();
  await files.uploadArchive(archive, "copy");
  console.log((await files.glob({ pattern: "copy/*.py", sort: "name" })).entries.map((entry) => entry.path).join(" "));

  try {
    await files.read("src/nothing");
  } catch (error) {
    if (!(error instanceof NotFoundError)) {
      throw error;
    }
    console.log(error.code, error.fileKind);
  }
} finally {
  await session.delete();
}
