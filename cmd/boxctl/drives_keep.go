// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

func (s driveCommands) keep() *cobra.Command {
	var versions int
	var age string
	var push bool
	cmd := &cobra.Command{
		Use: "keep [flags] NAME", Short: "Set how long versions of a drive are retained", Args: usage(cobra.ExactArgs(1)),
		Long: `keep sets how many versions of a drive are retained, and how long; 0 is no limit. The newest version
is never removed, and neither are versions that a box uses or has used, nor with --push versions
that have not been pushed.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var req api.DriveChange
			given := cmd.Flags().Changed
			if given("versions") {
				req.KeepVersions = &versions
			}
			if given("age") {
				d, err := quantity.ParseDuration(age)
				if err != nil {
					return &usageError{err: fmt.Errorf("--age %s: %w", render.ShellWord(age), err)}
				}
				req.KeepAge = &d
			}
			if given("push") {
				req.Push = &push
			}
			d, err := c.ChangeDrive(cmd.Context(), args[0], &req)
			return s.printVersions(&d, err)
		}),
	}
	cmd.Flags().IntVar(&versions, "versions", 0, "`N` number of versions to retain; 0 retains all")
	cmd.Flags().StringVar(&age, "age", "", "`TIME` remove versions older than this, for example 720h; 0 retains all")
	cmd.Flags().BoolVar(&push, "push", false, "retain versions until they have been pushed")
	return cmd
}

func (s driveCommands) switchTo() *cobra.Command {
	return &cobra.Command{
		Use: "switch BOX NAME[@VERSION]...", Short: "Mount other versions of drives in a running box", Args: usage(cobra.MinimumNArgs(2)),
		Long: `switch mounts the newest or the given version of a drive in a running box, and replaces the version
that was mounted before. Files that programs have open stay open, and readable until the box ends.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			var errs []error
			list := []api.SessionDrive{}
			for _, text := range args[1:] {
				name, version, err := parseDriveVersion(text)
				if err != nil {
					return err
				}
				k, _, err := c.SwitchDrive(cmd.Context(), args[0], name, version)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if list = append(list, k); !s.json {
					fmt.Fprintf(s.stdout, "%s %d %s\n", k.Target, k.Version, k.Digest)
				}
			}
			if s.json {
				errs = append(errs, s.printJSON(list))
			}
			return errors.Join(errs...)
		}),
	}
}
