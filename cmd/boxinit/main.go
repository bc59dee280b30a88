// SPDX-License-Identifier: Apache-2.0

// Command boxinit is PID 1 of every box. Only the keeper starts it.
package main

import (
	"os"

	"github.com/boxd-dev/boxd/isolation/inside"
)

func main() { os.Exit(inside.Main()) }
