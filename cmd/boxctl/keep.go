// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

func (s driveCommands) keep() *cobra.Command {
	var versions int
	var age string
	var push bool
	cmd := &cobra.Command{
		Use: "keep [flags] NAME", Short: "Say how long versions of a drive are kept", Args: Usage(cobra.ExactArgs(1)),
		Long: `keep changes how many versions of a drive are kept, and how old they may become; 0 is no bound. The newest is never
removed, nor one that a box has or has had, nor with --push one that was not pushed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var req api.DriveChange
			given := cmd.Flags().Changed
			if given("versions") {
				req.KeepVersions = &versions
			}
			if given("age") {
				d, err := quantity.ParseDuration(age)
				if err != nil {
					return &UsageError{Err: fmt.Errorf("--age %q: %w", age, err)}
				}
				req.KeepAge = &d
			}
			if given("push") {
				req.Push = &push
			}
			c := s.client()
			defer c.Close()
			d, err := c.ChangeDrive(cmd.Context(), args[0], &req)
			if err != nil {
				return err
			}
			return s.printVersions(&d)
		},
	}
	cmd.Flags().IntVar(&versions, "versions", 0, "`NUMBER` of versions")
	cmd.Flags().StringVar(&age, "age", "", "`TIME` that versions are kept, such as 720h")
	cmd.Flags().BoolVar(&push, "push", false, "keep versions until they are pushed")
	return cmd
}

func (s driveCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME[@VERSION]...", Short: "Remove drives, or versions of them, that no box has", Args: Usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			for _, text := range args {
				name, version, err := at(text)
				if err == nil {
					err = c.DeleteDrive(cmd.Context(), name, version)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

func (s driveCommands) switchTo() *cobra.Command {
	return &cobra.Command{
		Use: "switch SESSION NAME[@VERSION]...", Short: "Give a living box drives, or other versions of them", Args: Usage(cobra.MinimumNArgs(2)),
		Long: `switch mounts the newest version of a drive in a living box, or the one that is named, in the place of the one it has.
What its programs have open of that stays, and its files are kept until the box ends.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			list := []api.SessionDrive{}
			for _, text := range args[1:] {
				name, version, err := at(text)
				if err != nil {
					return err
				}
				k, _, err := c.SwitchDrive(cmd.Context(), args[0], name, version)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				if list = append(list, k); !s.JSON {
					fmt.Fprintf(s.Stdout, "%s %d %s\n", k.Target, k.Version, k.Digest)
				}
			}
			if s.JSON {
				errs = append(errs, s.PrintJSON(list))
			}
			return errors.Join(errs...)
		},
	}
}

func (s driveCommands) detach() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "detach SESSION NAME...", Short: "Take drives from a living box", Args: Usage(cobra.MinimumNArgs(2)),
		Long: `detach takes drives from a box. One in use stays, and is told with the programs that use it. With --force it goes:
what they have open of it stays open, and nothing else can be opened.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			var errs []error
			for _, name := range args[1:] {
				errs = append(errs, c.DetachDrive(cmd.Context(), args[0], name, force))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "even if it is in use")
	return cmd
}
