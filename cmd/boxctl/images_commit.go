// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (s imageCommands) commit() *cobra.Command {
	var req api.ImageCommit
	var env []string
	var dir string
	cmd := &cobra.Command{
		Use: "commit BOX NAME", Short: "Create an image from the changes in a box", Args: usage(cobra.ExactArgs(2)),
		Long: `commit creates an image from the root of a box that was created with --writable-root: the image of
the box with all changes that programs made. /workspace, /tmp and the home directory are not part of
it. The box continues to run, and its own image does not change. The configuration of the image is
copied too, unless a flag changes it.

Files are read one after another, and a file that changes while it is read makes commit fail. For a
consistent image, let no program of the box write meanwhile.`,
		Example: `  boxctl images commit work tools:2
  boxctl images commit work tools:2 --env LANG=C.UTF-8 --entrypoint python3 --entrypoint -u`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Name = args[1]
			for _, kv := range env {
				name, value, ok := strings.Cut(kv, "=")
				if !ok {
					return &usageError{err: fmt.Errorf("--env %s: must be NAME=value", render.ShellWord(kv))}
				}
				if req.Env == nil {
					req.Env = map[string]string{}
				}
				req.Env[name] = value
			}
			if cmd.Flags().Changed("workdir") {
				req.WorkingDir = &dir
			}
			img, err := c.CommitImage(cmd.Context(), args[0], &req)
			if err != nil {
				return err
			}
			return s.printMade(&img)
		}),
	}
	f := cmd.Flags()
	f.StringArrayVar(&env, "env", nil, "`NAME=value` set an environment variable of the image")
	f.StringVar(&dir, "workdir", "", "`DIRECTORY` working directory of the image's programs")
	f.StringArrayVar(&req.Entrypoint, "entrypoint", nil, "`WORD` entrypoint, one word per flag")
	f.StringArrayVar(&req.Cmd, "cmd", nil, "`WORD` default command or arguments, one word per flag")
	return cmd
}
