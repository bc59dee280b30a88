// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Leaves a process alone, and comes back to it at the byte that was read last.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// lines shows what a process prints, with its offset, and calls seen with the offset behind it.
type lines struct {
	at   int64
	seen func(at int64)
}

func (l *lines) Write(data []byte) (int, error) {
	fmt.Printf("%d %s", l.at, data)
	l.at += int64(len(data))
	l.seen(l.at)
	return len(data), nil
}

func run(ctx context.Context, boxd *client.Client) error {
	session, _, err := boxd.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	defer boxd.DeleteSession(ctx, session.ID)
	if _, _, err := boxd.StartProcess(ctx, session.ID, "server", &api.ProcessRequest{Argv: []string{"cat"}, Stdin: true}); err != nil {
		return err
	}
	var read int64
	input, to := io.Pipe()
	go io.WriteString(to, "first\n")
	out := &lines{seen: func(at int64) {
		read = at
		to.CloseWithError(client.ErrDetached) // leave the process alone
	}}
	_, err = boxd.Attach(ctx, session.ID, "server", client.AttachOptions{Write: true}, client.Stdio{Stdin: input, Stdout: out, Stderr: os.Stderr}, nil)
	if !errors.Is(err, client.ErrDetached) {
		return err
	}

	// Here the program may do something else, or end and be started again: it only has to keep the number.

	options := client.AttachOptions{Write: true, TakeOver: true, From: &[2]int64{read, 0}}
	out = &lines{at: read, seen: func(int64) {}}
	if _, err := boxd.Attach(ctx, session.ID, "server", options, client.Stdio{Stdin: strings.NewReader("second\n"), Stdout: out, Stderr: os.Stderr}, nil); err != nil {
		return err
	}
	state, err := boxd.ProcessEnd(ctx, session.ID, "server")
	fmt.Println(state.State)
	return err
}

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	if err := run(context.Background(), boxd); err != nil {
		log.Fatal(err)
	}
}
