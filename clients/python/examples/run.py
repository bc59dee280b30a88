# SPDX-License-Identifier: Apache-2.0

"""Runs code in a box of its own, which is removed afterwards."""

from boxd import Client

result = Client().run(code="print(6 * 7)", language="python", timeout="10s")
print(result.status, result.exit_code, result.stdout, end="")
