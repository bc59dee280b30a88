// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Fifty programs at a time in one box. boxd lets those wait that are more than the box may run.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func run(ctx context.Context, boxd *client.Client) error {
	session, _, err := boxd.CreateSession(ctx, &api.SessionRequest{Patch: limits.Patch{Memory: new(256 * quantity.MiB)}})
	if err != nil {
		return err
	}
	defer boxd.DeleteSession(ctx, session.ID)
	const programs = 50
	var results [programs]api.ExecResult
	var errs [programs]error
	var all sync.WaitGroup
	for n := range programs {
		all.Go(func() {
			line := fmt.Sprintf("echo $((%d * %d))", n, n)
			results[n], errs[n] = boxd.Exec(ctx, session.ID, &api.ExecRequest{Command: &line})
		})
	}
	all.Wait()
	good, sum := 0, 0
	for n, result := range results {
		if errs[n] != nil {
			return errs[n]
		}
		if result.ExitCode != nil && *result.ExitCode == 0 {
			good++
		}
		value, err := strconv.Atoi(strings.TrimSpace(result.Stdout))
		if err != nil {
			return err
		}
		sum += value
	}
	fmt.Println(good, sum)
	return nil
}

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	if err := run(context.Background(), boxd); err != nil {
		log.Fatal(err)
	}
}
