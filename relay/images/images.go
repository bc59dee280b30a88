// SPDX-License-Identifier: Apache-2.0

// Package images has the routes about images: what / of sessions can be made from.
package images

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	asked "github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/files"
	"github.com/boxd-dev/boxd/relay/route"
	does "github.com/boxd-dev/boxd/supervisor/files"
	store "github.com/boxd-dev/boxd/supervisor/images"
)

// List lists the images.
func List(c *route.Call) (any, error) { return listed(c.Images.List()), nil }

func listed(images []store.Image) api.ImageList {
	list := api.ImageList{Images: []api.Image{}}
	for i := range images {
		list.Images = append(list.Images, image(&images[i]))
	}
	return list
}

// Get describes an image.
func Get(c *route.Call) (any, error) {
	img, err := c.Images.Get(c.Path.Image)
	if err != nil {
		return nil, err
	}
	return image(&img), nil
}

// patience is how long a caller may take for a piece of an archive.
const patience = time.Minute

// sent reads the body of a request as it comes.
type sent struct{ c *route.Call }

func (s sent) Read(p []byte) (int, error) {
	_ = http.NewResponseController(s.c.W).SetReadDeadline(time.Now().Add(patience)) // every connection of ours has deadlines
	return s.c.R.Body.Read(p)
}

// Import makes an image of the archive that the body is.
func Import(c *route.Call) (any, error) {
	query := c.R.URL.Query()
	img, err := c.Images.Import(c.Context(), sent{c}, store.Source{Name: query.Get("name"), Form: query.Get("form")})
	if err != nil {
		return nil, err
	}
	return route.Created{Body: image(&img)}, nil
}

// Commit makes an image of what programs of a session have made of its own. Who may import images may do that: it is the
// operator's then, and everybody's to use.
func Commit(c *route.Call) (any, error) {
	s, err := c.Session()
	if err != nil {
		return nil, err
	}
	var in api.ImageCommit
	if err := c.DecodeBody(&in, route.MaxSessionBody); err != nil {
		return nil, err
	}
	if err := files.Writable(s); err != nil {
		return nil, err
	}
	if s.Settings.Root == nil {
		return nil, fault.Errorf(fault.Conflict, "session %s has the host's own programs, which are no image", fault.Show(s.ID)).
			WithHint("an image can be made of a session that was made of one; boxctl diff shows what is other than on the host")
	}
	to := &store.Commitment{Name: in.Name, Env: in.Env, WorkingDir: in.WorkingDir, Entrypoint: in.Entrypoint, Cmd: in.Cmd}
	img, err := c.Images.Commit(c.Context(), s.Settings.Root, to, func(ctx context.Context, b asked.Bounds, w io.Writer) error {
		_, err := does.Commit(ctx, s, b, w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return route.Created{Body: image(&img)}, nil
}

// Delete removes an image. Sessions that have it keep it.
func Delete(c *route.Call) (any, error) {
	if err := c.Images.Remove(c.Path.Image); err != nil {
		return nil, err
	}
	return route.NoContent{}, nil
}

// Prune removes the images that no session has and no profile names.
func Prune(c *route.Call) (any, error) {
	profiles, _ := c.Sup.Profiles()
	var keep []string
	for _, p := range profiles {
		keep = append(keep, p.Image)
	}
	gone, err := c.Images.Prune(c.Context(), keep)
	if err != nil {
		return nil, err
	}
	return listed(gone), nil
}

func image(img *store.Image) api.Image {
	c := &img.Config
	return api.Image{
		Name: img.Name, Digest: img.Digest, Form: img.Form, Bytes: img.Bytes, Entries: img.Entries, LeftOut: img.LeftOut, Layers: img.Layers,
		Sessions: img.Used, CreatedAt: img.Created.UTC(),
		Config: api.ImageConfig{Architecture: c.Architecture, Env: c.Env, WorkingDir: c.WorkingDir, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd},
	}
}
