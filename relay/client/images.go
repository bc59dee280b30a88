// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"io"
	"net/http"

	"github.com/boxd-dev/boxd/relay/api"
)

// Images lists all images, by name.
func (c *Client) Images(ctx context.Context) ([]api.Image, error) {
	list, err := request[api.ImageList](ctx, c, http.MethodGet, target{path: "/v1/images"}, nil)
	return list.Images, err
}

// Image describes an image, by its name or digest.
func (c *Client) Image(ctx context.Context, name string) (api.Image, error) {
	return request[api.Image](ctx, c, http.MethodGet, about("/v1/images", name, ""), nil)
}

// ImportImage makes an image of an archive. An empty name means the archive's own; form is the archive's format, "" to
// detect it.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, name, form string) (api.Image, error) {
	to := target{path: "/v1/images"}.with(queryOf("name", name, "form", form))
	return request[api.Image](ctx, c, http.MethodPost, to, archive)
}

// CommitImage makes an image of a session's image with the changes of its programs.
func (c *Client) CommitImage(ctx context.Context, session string, req *api.ImageCommit) (api.Image, error) {
	return request[api.Image](ctx, c, http.MethodPost, c.session(session, "/commit", nil), req)
}

// DeleteImage removes an image. Sessions that use it keep it.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, about("/v1/images", name, ""), nil, nil)
	return err
}

// PruneImages removes the images that no session uses and no profile names, and returns them.
func (c *Client) PruneImages(ctx context.Context) ([]api.Image, error) {
	list, err := request[api.ImageList](ctx, c, http.MethodPost, target{path: "/v1/images/prune"}, nil)
	return list.Images, err
}

// DiffRoot returns what the programs of a session have changed in its image.
func (c *Client) DiffRoot(ctx context.Context, session string, req *api.RootDiff) (api.Changes, error) {
	return request[api.Changes](ctx, c, http.MethodPost, c.session(session, "/fs/diff", nil), req)
}

// DiscardRoot reverts what the programs of a session have changed in its image.
func (c *Client) DiscardRoot(ctx context.Context, session string, req *api.RootDiscard) (api.RootDiscarded, error) {
	return request[api.RootDiscarded](ctx, c, http.MethodPost, c.session(session, "/fs/discard", nil), req)
}
