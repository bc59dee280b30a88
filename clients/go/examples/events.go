// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Hears what happens in a session, and goes on after the last event that was heard.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

var errEnough = errors.New("enough")

func run(ctx context.Context, boxd *client.Client) error {
	session, _, err := boxd.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	defer boxd.DeleteSession(ctx, session.ID)
	if _, err := boxd.Exec(ctx, session.ID, &api.ExecRequest{Argv: []string{"true"}}); err != nil {
		return err
	}
	last := ""
	for _, until := range []string{"exec.started", "exec.ended"} {
		options := client.EventOptions{Session: session.ID, After: last, Follow: true}
		err := boxd.Events(ctx, options, func(e *api.Event) error {
			fmt.Println(e.Type)
			last = e.ID
			if e.Type == until {
				return errEnough
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			return err
		}
	}
	return nil
}

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	if err := run(context.Background(), boxd); err != nil {
		log.Fatal(err)
	}
}
