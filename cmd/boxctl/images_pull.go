// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/transfer"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func (s imageCommands) pull() *cobra.Command {
	var o transfer.PullOptions
	var name string
	var password bool
	cmd := &cobra.Command{
		Use: "pull REF", Short: "Pull an image from a registry", Args: usage(cobra.ExactArgs(1)),
		Long: `pull fetches the image REF from its registry, without a container engine, and imports it. A name
without a registry is one of Docker Hub, and the default tag is latest. boxctl itself connects to
the registry, not boxd: the network of this client counts. Registries are accessed over TLS, with
the certificates of the host or of SSL_CERT_FILE.

Credentials come from --username and --password-stdin, or from --authfile. No other files are read,
and no credential helpers are run.`,
		Example: `  boxctl images pull python:3.12
  boxctl images pull registry.example/team/tools@sha256:… --name tools:1
  boxctl images pull --username me --password-stdin registry.example/team/tools:1 < token`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Ref = args[0]
			if o.Credentials.Username == "" == password || o.Credentials.File != "" && password {
				return &usageError{err: errors.New("want --username with --password-stdin, or --authfile, or none of them")}
			}
			if password {
				text, err := readSecret(s.stdin)
				if err != nil {
					return err
				}
				o.Credentials.Password = text
			}
			return s.pullFrom(cmd.Context(), &o, name)
		},
	}
	s.addQuiet(cmd, quietImage)
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "`NAME` local name of the image (default: REF)")
	f.StringVar(&o.Platform, "platform", "", "`OS/ARCH` platform to pull (default: this machine's)")
	f.StringVar(&o.Credentials.Username, "username", "", "`NAME` user name for the registry")
	f.BoolVar(&password, "password-stdin", false, "read the password or token from standard input")
	f.StringVar(&o.Credentials.File, "authfile", "", "`FILE` credentials file, as docker login or podman login writes it")
	f.BoolVar(&o.Insecure, "insecure", false, "use plain HTTP instead of TLS")
	return cmd
}

// maxSecret is the maximum length of a password or token.
const maxSecret = 64 << 10

func readSecret(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" || len(data) > maxSecret {
		return "", fmt.Errorf("standard input: want a password of 1 to %d bytes", maxSecret)
	}
	return text, nil
}

func (s imageCommands) pullFrom(ctx context.Context, o *transfer.PullOptions, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, err := transfer.FindImage(ctx, o)
	if err != nil {
		return err
	}
	defer found.Close()
	if name == "" {
		name = found.Name
	}
	c := s.client()
	defer c.Close()
	// An existing image need not be fetched again; other errors of this query the import will report.
	if image, err := c.Image(ctx, name); err == nil && image.Digest == found.Digest {
		return s.printMade(&image)
	}
	img, err := s.fetch(ctx, cancel, c, found, name)
	if err != nil {
		return err
	}
	if img.Digest != found.Digest {
		return fmt.Errorf("pull %s: boxd has %s, not %s", o.Ref, img.Digest, found.Digest)
	}
	return s.printMade(&img)
}

// fetch streams an image to boxd. cancel stops the transfer from the registry.
func (s imageCommands) fetch(ctx context.Context, cancel func(), c *client.Client, found *transfer.Image, name string) (api.Image, error) {
	from, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := found.Write(to)
		written <- err
		to.CloseWithError(err)
	}()
	p := s.progress("pulled", found.Size)
	p.after = unpacking
	img, err := c.ImportImage(ctx, struct{ io.Reader }{&countedReader{from, p}}, name, "oci")
	p.end()
	select {
	case failed := <-written:
		if failed != nil && ctx.Err() == nil {
			err = failed // boxd only reports an incomplete archive
		}
	default: // boxd does not want it
		cancel()
		from.CloseWithError(errUnread)
		if failed := <-written; err == nil {
			err = failed
		}
	}
	return img, err
}

// printMade prints the image that was made or found.
func (s imageCommands) printMade(img *api.Image) error {
	if s.json {
		return s.printJSON(img)
	}
	if s.quiet {
		_, err := fmt.Fprintln(s.stdout, img.Name)
		return err
	}
	_, err := fmt.Fprintf(s.stdout, "%s %s, %v in %d files\n", img.Name, img.Digest, roundSize(img.Bytes), img.Entries)
	return err
}
