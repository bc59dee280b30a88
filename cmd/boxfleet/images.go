// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// The images of a fleet are archives in JetStream, under their names. A node gets one when it is asked for the first session of it, and
// proves by its digest that it has the same. Its operator says whether a gateway may do that.

// imageBucket is the store of images.
const imageBucket = "boxd_images"

// storedImage is an image and where its archive is.
type storedImage struct {
	api.Image
	Archive  archived `json:"archive"`
	revision uint64   // of its record
}

func noImages(err error) error { return noStore("images", err) }

// imageKey is the key of an image's record: no owner has images.
func imageKey(name string) string { return claimKey("", name) }

// image reads the record of an image; nil: there is none.
func (s *archiveStore) image(ctx context.Context, name string) (k *storedImage, err error) {
	k = &storedImage{}
	if k.revision, err = s.get(ctx, imageKey(name), k); err != nil {
		return nil, noImages(err)
	}
	if k.revision == 0 {
		return nil, nil //nolint:nilnil // there is none, and nothing has failed
	}
	return k, nil
}

// images answers what is about the images of the fleet.
func (g *gateway) images(c *call, path []string) error {
	var name string
	var err error
	if len(path) > 0 {
		if name, err = url.PathUnescape(path[0]); err != nil {
			return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
		}
	}
	route := c.r.Method + " /v1/images" + strings.Repeat("/{image}", len(path))
	do, ok := map[string]func(*call, *archiveStore, string) error{
		"GET /v1/images":            listImages,
		"POST /v1/images":           g.importImage,
		"GET /v1/images/{image}":    showImage,
		"DELETE /v1/images/{image}": removeImage,
	}[route]
	if !ok || g.cfg.Images == 0 {
		return onNodes(c)
	}
	minRole := access.Viewer
	if c.r.Method != http.MethodGet {
		minRole = access.Operator
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	var s *archiveStore
	if c.r.Method == http.MethodPost {
		s, err = g.openArchives(c.r.Context(), imageBucket, "images", g.cfg.Images)
	} else {
		s, err = g.readArchives(c.r.Context(), imageBucket, "images")
	}
	if err != nil {
		return noImages(err)
	}
	return do(c, s, name)
}

func listImages(c *call, s *archiveStore, _ string) error {
	list := api.ImageList{Images: []api.Image{}}
	if s == nil {
		reply(c.w, http.StatusOK, list)
		return nil
	}
	entries, err := s.list(c.r.Context())
	if err != nil {
		return noImages(err)
	}
	for _, entry := range entries {
		k := &storedImage{}
		if _, err := readRecord(entry, k); err != nil {
			return noImages(err)
		}
		list.Images = append(list.Images, k.Image)
	}
	slices.SortFunc(list.Images, func(a, b api.Image) int { return strings.Compare(a.Name, b.Name) })
	reply(c.w, http.StatusOK, list)
	return nil
}

func noImage(name string) error {
	return fault.Errorf(fault.NotFound, "the fleet has no image %s", fault.Show(name)).WithHint("list images: boxctl images ls")
}

func showImage(c *call, s *archiveStore, name string) error {
	k, err := s.image(c.r.Context(), name)
	if err == nil && k == nil {
		err = noImage(name)
	}
	if err != nil {
		return err
	}
	reply(c.w, http.StatusOK, k.Image)
	return nil
}

// removeImage removes an image from the fleet. Nodes keep theirs.
func removeImage(c *call, s *archiveStore, name string) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), storeTimeout)
	defer cancel()
	k, err := s.image(ctx, name)
	if err == nil && k == nil {
		err = noImage(name)
	}
	if err != nil {
		return err
	}
	err = s.remove(ctx, func() error { return s.records.Delete(ctx, imageKey(name), jetstream.LastRevision(k.revision)) }, k.Archive)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the image %s has changed meanwhile", fault.Show(name)).WithHint("try again")
	case err != nil:
		return noImages(err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// importImage stores an image for the fleet when a node has found that it is one.
func (g *gateway) importImage(c *call, s *archiveStore, _ string) error {
	query := c.r.URL.Query()
	if query.Get("name") == "" {
		return fault.Field("name", "", "the name of the image, which a gateway does not take from the archive")
	}
	k := &storedImage{Image: api.Image{Name: query.Get("name"), Form: query.Get("form")}}
	err := g.receive(c, s, &receiving{
		maxBytes: g.cfg.Images,
		tooLarge: func() error {
			return fault.Errorf(fault.Exhausted, "the image is larger than all images together may be").WithHint("the operator of the gateway can raise size in [images] of gateway.toml")
		},
		inspect: func(u *upload) error {
			k.Archive = u.archived
			return g.tryImage(c, s, k)
		},
		fits: func(*upload) error { return nil },
		put:  func() error { return s.putImage(c.r.Context(), k) },
		forget: func(ctx context.Context) error {
			return s.records.Delete(ctx, imageKey(k.Name), jetstream.LastRevision(k.revision))
		},
	})
	if err != nil {
		return noImages(err)
	}
	g.events.add("image_imported", "", "", k.Name+" "+k.Digest+", by "+c.pass.Name)
	reply(c.w, http.StatusCreated, k.Image)
	return nil
}

// tryImage has a node import an image, which says what it is.
func (g *gateway) tryImage(c *call, s *archiveStore, k *storedImage) error {
	return g.onAny(func(n *nodeState) error {
		image, err := g.sendImage(c, n, s, k)
		if err == nil {
			k.Image = *image
			k.Sessions = 0
		}
		return err
	})
}

// putImage makes an image known, in the place of one of the same name.
func (s *archiveStore) putImage(ctx context.Context, k *storedImage) error {
	before, err := s.image(ctx, k.Name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var old []archived
	var revision uint64 // of the record; 0: there is none
	if before != nil {
		old, revision = []archived{before.Archive}, before.revision
	}
	err = s.remove(ctx, func() error {
		k.revision, err = s.put(ctx, imageKey(k.Name), k, revision)
		return err
	}, old...)
	if conflict(err) {
		return fault.Errorf(fault.Conflict, "the image %s has changed meanwhile", fault.Show(k.Name)).WithHint("try again")
	}
	return err
}

// sendImage has a node import an image.
func (g *gateway) sendImage(c *call, n *nodeState, s *archiveStore, k *storedImage) (*api.Image, error) {
	of := *c
	of.imports = true
	image := &api.Image{}
	if err := g.sendArchive(&of, n, s, k.Archive, "/v1/images?"+url.Values{"name": {k.Name}, "form": {k.Form}}.Encode(), image); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(image.Digest, "sha256:") || image.Name != k.Name {
		return nil, unreached(n.Name, fmt.Errorf("asked for image %s, it has made %s with the digest %s", fault.Show(k.Name), fault.Show(image.Name), fault.Show(image.Digest)))
	}
	return image, nil
}

// storedImage looks up an image of the fleet; nil: it has none of that name.
func (g *gateway) storedImage(ctx context.Context, name string) (*storedImage, error) {
	s, err := g.readArchives(ctx, imageBucket, "images")
	if s == nil {
		return nil, err
	}
	return s.image(ctx, name)
}

// hasImage sees to it that a node has an image of the fleet.
func (g *gateway) hasImage(c *call, n *nodeState, name, digest string) error {
	key := n.Name + " " + digest
	if err := g.refusalOf(key); err != nil {
		return err
	}
	image := &api.Image{}
	ok, err := g.get(c, n, "/v1/images/"+url.PathEscape(name), image)
	if err != nil {
		return err
	}
	if !ok || image.Digest != digest {
		s, err := g.readArchives(c.r.Context(), imageBucket, "images")
		if err == nil && s == nil {
			err = noImages(errors.New("nothing was ever stored"))
		}
		if err != nil {
			return err
		}
		k, err := s.image(c.r.Context(), name)
		if err != nil {
			return err
		}
		if k == nil || k.Digest != digest {
			return replaced("image", name)
		}
		if image, err = g.sendImage(c, n, s, k); err == nil && image.Digest != digest {
			err = fault.Errorf(fault.Conflict, "its digest is %s there, and %s on another node", image.Digest, digest).WithHint("nodes of other architectures need images of other names")
		}
		if err != nil {
			err = fmt.Errorf("it does not have the fleet's image %s, and does not take it: %w", fault.Show(name), err)
			g.refused(key, err)
			return err
		}
		g.events.add("image_sent", n.Name, "", name+" "+digest)
	}
	return nil
}
