// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Shows output as it comes, and answers the program.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// answers writes what the program prints, and its name where the program asks for it.
type answers struct{ to io.WriteCloser }

func (a answers) Write(data []byte) (int, error) {
	if strings.HasSuffix(string(data), "name?\n") {
		go func() {
			_, _ = io.WriteString(a.to, "world\n")
			a.to.Close()
		}()
	}
	return os.Stdout.Write(data)
}

func run(ctx context.Context, boxd *client.Client) error {
	session, _, err := boxd.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	defer boxd.DeleteSession(ctx, session.ID)
	line := "echo name?; read name; for i in 1 2 3; do echo hello $name $i; done; exit 3"
	input, to := io.Pipe()
	result, err := boxd.ExecStream(ctx, session.ID, &api.ExecRequest{Command: &line}, client.Stdio{Stdin: input, Stdout: answers{to}, Stderr: os.Stderr}, nil)
	if err != nil {
		return err
	}
	fmt.Println(result.Status, *result.ExitCode)
	return nil
}

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	if err := run(context.Background(), boxd); err != nil {
		log.Fatal(err)
	}
}
