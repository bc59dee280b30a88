// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"io"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"

	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// listImages lists the images.
func listImages(c *Call) (any, error) { return listed(c.Images.List()), nil }

func listed(images []images.Image) api.ImageList {
	list := api.ImageList{Images: []api.Image{}}
	for i := range images {
		list.Images = append(list.Images, image(&images[i]))
	}
	return list
}

// getImage describes an image.
func getImage(c *Call) (any, error) {
	img, err := c.Images.Get(c.Path.Image)
	if err != nil {
		return nil, err
	}
	return image(&img), nil
}

// importImage makes an image of the archive in the body.
func importImage(c *Call) (any, error) {
	query := c.R.URL.Query()
	img, err := c.Images.Import(c.Context(), conns.ArchiveBody(c.W, c.R), images.Source{Name: query.Get("name"), Form: query.Get("form"), By: c.Caller.Name})
	if err != nil {
		return nil, err
	}
	return Created{Body: image(&img)}, nil
}

// commitImage makes an image of the session's image with the changes of its programs. It takes the role for importing
// images: the result belongs to the operator, and all may use it.
func commitImage(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	var in api.ImageCommit
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	if err := writable(s); err != nil {
		return nil, err
	}
	if s.Settings.Root == nil {
		return nil, fault.Errorf(fault.Conflict, "cannot make an image of session %s: its root is the host's", fault.Show(s.ID)).
			WithHint("create the session with --image; boxctl diff lists the changes")
	}
	to := &images.Commitment{Name: in.Name, By: c.Caller.Name, Env: in.Env, WorkingDir: in.WorkingDir, Entrypoint: in.Entrypoint, Cmd: in.Cmd}
	img, err := c.Images.Commit(c.Context(), s.Settings.Root, to, func(ctx context.Context, b files.Bounds, w io.Writer) error {
		_, err := sessionfiles.Commit(ctx, s, b, w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return Created{Body: image(&img)}, nil
}

// deleteImage removes an image. Sessions that use it keep it.
func deleteImage(c *Call) (any, error) {
	if err := c.Images.Remove(c.Path.Image); err != nil {
		return nil, err
	}
	return noContent{}, nil
}

// pruneImages removes the images that no session uses and no profile names.
func pruneImages(c *Call) (any, error) {
	profiles, _ := c.Sup.Profiles()
	var inUse []string
	for _, p := range profiles {
		inUse = append(inUse, p.Image)
	}
	removed, err := c.Images.Prune(c.Context(), inUse)
	if err != nil {
		return nil, err
	}
	return listed(removed), nil
}

func image(img *images.Image) api.Image {
	c := &img.Config
	return api.Image{
		Name: img.Name, Digest: img.Digest, Form: img.Form, Bytes: img.Bytes, Entries: img.Entries, LeftOut: img.LeftOut, Layers: img.Layers,
		Sessions: img.Used, CreatedAt: img.Created.UTC(),
		Config: api.ImageConfig{Architecture: c.Architecture, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd},
	}
}
