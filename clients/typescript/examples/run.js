// SPDX-License-Identifier: Apache-2.0

// Runs code in a box of its own, which is removed afterwards.

import { Client } from "boxd-client";

const result = await new Client().run({ code: "print(6 * 7)", language: "python", timeout: "10s" });
console.log(result.status, result.exit_code, result.stdout.trim());
