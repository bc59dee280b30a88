// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

type imageCommands struct{ *app }

// imageCommand returns boxctl images with its subcommands.
func (a *app) imageCommand() *cobra.Command {
	s := imageCommands{a}
	return group("images", "Manage images: root filesystems for boxes", `Without an image, boxes use the programs of the host. An image is another root filesystem, for
example from a registry or from "docker save"; boxd needs no container engine for it. Operators
manage images. All users can run boxes with them if their profile allows it
(boxctl run --image NAME).`,
		lsCommand(a, "List images by name", (*client.Client).Images, func(list []api.Image) any { return api.ImageList{Images: list} }, s.print, func(img *api.Image) string { return img.Name }),
		inspectOneCommand(a, "Show all details of an image as JSON", (*client.Client).Image),
		s.pull(), s.imports(), s.commit(),
		a.rmEachCommand("rm NAME...", "Remove images; boxes that use them are not affected", (*client.Client).DeleteImage),
		s.prune())
}

func (s imageCommands) print(list []api.Image) error {
	return table(s.stdout, "NAME\tDIGEST\tSIZE\tFILES\tBOXES", list, func(img *api.Image) string {
		return fmt.Sprintf("%s\t%s\t%v\t%d\t%d", img.Name, shortDigest(img.Digest), roundSize(img.Bytes), img.Entries, img.Sessions)
	})
}

// shortDigest returns the beginning of a digest, long enough to tell digests apart.
func shortDigest(digest string) string {
	const algorithm, enough = "sha256:", 12
	if sum, ok := strings.CutPrefix(digest, algorithm); ok && len(sum) > enough {
		return sum[:enough]
	}
	return digest
}

const (
	// unpacking is shown after an image has been sent.
	unpacking = "unpacking"
	// quietImage is the help of --quiet in commands that make an image.
	quietImage = "print only the name of the image, and no progress"
)

func (s imageCommands) imports() *cobra.Command {
	var name, form string
	cmd := &cobra.Command{
		Use: "import SOURCE", Short: "Create an image from an archive or a directory", Args: usage(cobra.ExactArgs(1)),
		Long: `import creates an image from SOURCE: an OCI image layout (a directory or a tar archive), an archive
of "docker save" or "podman save", or a tar archive of a root filesystem. Archives can be compressed
with gzip or zstd; - is standard input. All digests are verified, and layers are unpacked in a box.
The new image replaces one of the same name; boxes that use the old one continue to use it.`,
		Example: `  docker save python:3.12 | boxctl images import -
  boxctl images import ./layout --name tools:1
  boxctl images import rootfs.tar.gz --name debian:mine`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if name == "" {
				if err := checkNamed(args[0], form); err != nil {
					return err
				}
			}
			archive, size, done, err := s.open(args[0], false)
			if err != nil {
				return err
			}
			defer done()
			p := s.progress("sent", size)
			p.after = unpacking
			img, err := c.ImportImage(cmd.Context(), struct{ io.Reader }{&countedReader{archive, p}}, name, form)
			p.end()
			if err != nil {
				return err
			}
			return s.printMade(&img)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "`NAME` name of the image (default: the name in the archive)")
	s.addQuiet(cmd, quietImage)
	cmd.Flags().StringVar(&form, "form", "", "`FORM` format of SOURCE: oci, docker or rootfs (default: detect it)")
	return cmd
}

func (s imageCommands) prune() *cobra.Command {
	var l *listing[api.Image]
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove images that no box and no profile uses", Args: usage(cobra.NoArgs),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			removed, err := c.PruneImages(cmd.Context())
			return l.print(removed, api.ImageList{Images: removed}, err, func() error { return s.print(removed) })
		}),
	}
	l = newListing(s.app, cmd, "names", func(img *api.Image) string { return img.Name })
	return cmd
}
