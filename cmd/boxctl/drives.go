// SPDX-License-Identifier: Apache-2.0

// This file has the commands of boxctl about drives: directories in versions that boxes read.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/s3"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// driveCommands have what boxctl has.
type driveCommands struct{ *App }

func (s driveCommands) client() *client.Client { return s.Client() }

// driveCommand is that with all others below it.
func driveCommand(app *App) *cobra.Command {
	s := driveCommands{app}
	return Group("drives", "Keep drives: directories in versions that boxes read", `A drive has a name of two parts, OWNER/PROJECT, and versions that never change. Boxes read one of them at
/drives/OWNER/PROJECT: run and create take it with --drive, and a living box is given another with drives switch.`,
		s.list(), s.show(), s.fill(), s.promote(), s.index(), s.text(), s.archive(), s.push(), s.keep(), s.remove(), s.switchTo(), s.detach())
}

// at reads NAME[@VERSION]; 0 is the newest.
func at(text string) (name string, version int, err error) {
	name, number, pinned := strings.Cut(text, "@")
	if pinned {
		if version, err = strconv.Atoi(number); err != nil || version < 1 {
			return "", 0, &UsageError{Err: fmt.Errorf("%q: allowed is NAME, or NAME@VERSION with the number of a version", text)}
		}
	}
	return name, version, nil
}

func (s driveCommands) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List drives", Args: Usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := s.client()
			defer c.Close()
			list, err := c.Drives(cmd.Context())
			if err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(api.DriveList{Drives: list})
			}
			w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tVERSION\tSIZE\tENTRIES\tVERSIONS\tSIZE OF ALL")
			for i := range list {
				d, all := &list[i], int64(0)
				for j := range d.Versions {
					all += d.Versions[j].Bytes
				}
				newest := d.Versions[len(d.Versions)-1:]
				for j := range newest {
					v := &newest[j]
					fmt.Fprintf(w, "%s\t%d\t%v\t%d\t%d\t%v\n", d.Name, v.Version, quantity.Size(v.Bytes), v.Entries, len(d.Versions), quantity.Size(all))
				}
			}
			return w.Flush()
		},
	}
}

func (s driveCommands) show() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "List the versions of a drive", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := s.client()
			defer c.Close()
			d, err := c.Drive(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return s.printVersions(&d)
		},
	}
}

func (s driveCommands) printVersions(d *api.Drive) error {
	if s.JSON {
		return s.PrintJSON(d)
	}
	w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "VERSION\tSIZE\tENTRIES\tBOXES\tPUSHED\tFROM")
	for i := range d.Versions {
		v := &d.Versions[i]
		pushed := "-"
		if !v.PushedAt.IsZero() {
			pushed = "yes"
		}
		fmt.Fprintf(w, "%d\t%v\t%d\t%d\t%s\t%s\n", v.Version, quantity.Size(v.Bytes), v.Entries, v.Sessions, pushed, render.Printable(v.Origin))
	}
	return w.Flush()
}

// done prints the version that a filling has come to.
func (s driveCommands) done(v *api.DriveVersion, err error) error {
	switch {
	case err != nil:
		return err
	case s.JSON:
		return s.PrintJSON(v)
	}
	_, err = fmt.Fprintf(s.Stdout, "%d %s\n", v.Version, v.Digest)
	return err
}

// driveFlags are those of whatever makes a version.
func driveFlags(cmd *cobra.Command, f *client.DriveFilling) {
	cmd.Flags().StringVar(&f.Into, "into", "", "put it into this `DIRECTORY` of the drive")
	cmd.Flags().BoolVar(&f.Add, "add", false, "keep what else the newest version has")
}

func (s driveCommands) fill() *cobra.Command {
	var f client.DriveFilling
	o := s3.Options{Getenv: os.Getenv}
	last, most := -1, ""
	cmd := &cobra.Command{
		Use: "fill [flags] NAME SOURCE", Short: "Make the next version of a drive, and the drive", Args: Usage(cobra.ExactArgs(2)),
		Long: `fill makes a version of a directory, or of a zip or tar archive (- is standard input): all of it or nothing. Links are
refused. Without --add the source is all that the version has. What would be as the newest version is makes none.
With s3://BUCKET/PREFIX it is made of the objects below PREFIX/ of an S3-compatible bucket: all that cannot be names of
files are told, and nothing is fetched then. push says who asks, and how.`,
		Example: `  boxctl drives fill me/data ./data
  boxctl drives fill me/data s3://datasets/2026`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("if-version") {
				f.IfVersion = &last
			}
			archive, end, err := s.source(cmd.Context(), args[1], &o, most)
			if err != nil {
				return err
			}
			defer end()
			f.Archive = archive
			c := s.client()
			defer c.Close()
			v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
			return s.done(&v, err)
		},
	}
	driveFlags(cmd, &f)
	cmd.Flags().IntVar(&last, "if-version", 0, "only if this is the `NUMBER` of the newest version; 0: if there is none")
	o.Flags(cmd.Flags())
	cmd.Flags().StringVar(&most, "max-size", "1GiB", "fetch no more than this from a bucket (`SIZE`)")
	return cmd
}

// source opens what fills a drive: a bucket, or what App.Source takes. done ends it.
func (s driveCommands) source(ctx context.Context, from string, o *s3.Options, most string) (r io.Reader, done func(), err error) {
	if !s3.Is(from) {
		return s.Source(from, false)
	}
	size, err := quantity.ParseSize(most)
	if err != nil {
		return nil, nil, &UsageError{Err: fmt.Errorf("--max-size %q: %w", most, err)}
	}
	o.Address = from
	return s.fromBucket(ctx, o, size)
}

func (s driveCommands) promote() *cobra.Command {
	var f client.DriveFilling
	o := s3.Options{Getenv: os.Getenv}
	cmd := &cobra.Command{
		Use: "promote [flags] NAME SESSION [PATH]", Short: "Make the next version of a drive of what a box has made", Args: Usage(cobra.RangeArgs(2, 3)),
		Long: `promote takes a directory of a living box, or with --output-version what an execution with that version has made. With
--push-to the version then goes to a bucket, as push does; its drive keeps versions until they are pushed from then on, so
that after a failure nothing is lost, even if the box is, and push goes on.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Session = args[1]
			if len(args) > 2 {
				f.Path = args[2]
			}
			if (f.Path == "") == (f.Output == "") {
				return &UsageError{Err: errors.New("give the PATH of a directory, or --output-version")}
			}
			c := s.client()
			defer c.Close()
			if o.Address == "" {
				v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
				return s.done(&v, err)
			}
			b, err := s3.Open(&o) // who gets that wrong has made nothing
			if err != nil {
				return &UsageError{Err: err}
			}
			defer b.Close()
			v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
			if err != nil {
				return err
			}
			if _, err := c.ChangeDrive(cmd.Context(), args[0], &api.DriveChange{Push: new(true)}); err != nil {
				return err
			}
			return s.pushTo(cmd.Context(), b, args[0], v.Version, false)
		},
	}
	driveFlags(cmd, &f)
	o.Flags(cmd.Flags())
	o.SendFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.Address, "push-to", "", "put the version into a bucket (`s3://BUCKET/PREFIX`)")
	cmd.Flags().StringVar(&f.Output, "output-version", "", "the `VERSION` of the outputs in /workspace/output")
	return cmd
}

func (s driveCommands) index() *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use: "index [flags] NAME[@VERSION]", Short: "List what a drive has", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := at(args[0])
			if err != nil {
				return err
			}
			c := s.client()
			defer c.Close()
			all, err := index(cmd.Context(), c, name, version, prefix)
			if err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(all)
			}
			w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
			for i := range all.Entries {
				e := &all.Entries[i]
				kind := e.Type
				if e.Executable {
					kind = "program"
				}
				fmt.Fprintf(w, "%s\t%d\t %s\n", kind, e.Size, render.Printable(e.Path))
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "those alone whose paths begin with `TEXT`")
	return cmd
}

// index lists all that a version has.
func index(ctx context.Context, c *client.Client, name string, version int, prefix string) (api.DriveIndex, error) {
	all := api.DriveIndex{Entries: []api.DriveEntry{}}
	for offset := 0; ; {
		page, err := c.DriveIndex(ctx, name, version, prefix, offset, 1000)
		if err != nil {
			return all, err
		}
		version, all.Version = page.Version.Version, page.Version // the following pages are of the same
		all.Entries = append(all.Entries, page.Entries...)
		if offset = page.Next; offset == 0 {
			return all, nil
		}
	}
}

func (s driveCommands) text() *cobra.Command {
	var bytes int
	cmd := &cobra.Command{
		Use: "text [flags] NAME[@VERSION]", Short: "Print a short text for a prompt that tells what a drive has", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := at(args[0])
			if err != nil {
				return err
			}
			c := s.client()
			defer c.Close()
			t, err := c.DriveText(cmd.Context(), name, version, bytes)
			if err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(t)
			}
			_, err = io.WriteString(s.Stdout, t.Text)
			return err
		},
	}
	cmd.Flags().IntVar(&bytes, "bytes", 4096, "`NUMBER` of bytes that it has at most")
	return cmd
}

func (s driveCommands) archive() *cobra.Command {
	return &cobra.Command{
		Use: "archive NAME[@VERSION]", Short: "Write a drive to standard output as a tar archive", Args: Usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := at(args[0])
			if err != nil {
				return err
			}
			c := s.client()
			defer c.Close()
			r, err := c.DriveArchive(cmd.Context(), name, version)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(s.Stdout, r)
			return err
		},
	}
}
