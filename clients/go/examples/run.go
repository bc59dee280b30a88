// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Runs code in a box of its own, which is removed afterwards.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	code := "print(6 * 7)"
	result, err := boxd.Run(context.Background(), &api.OneShotRequest{Exec: api.ExecRequest{Code: &code, Language: "python"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %d %s", result.Status, *result.ExitCode, result.Stdout)
}
