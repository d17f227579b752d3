package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Certify returns the account of id with a client certificate instead of a
// token. The certificate cannot be revoked: it is good for its lifetime, or
// until the next ReplaceCA.
func (c *Cluster) Certify(id *Identity, lifetime time.Duration) (*Identity, error) {
	c.mu.Lock()
	authority := c.authority
	c.mu.Unlock()
	certified := &Identity{Namespace: id.Namespace, Name: id.Name}
	err := errors.New("the admin has no ServiceAccount to certify")
	if id.Namespace != "" {
		certified.Certificate, certified.Key, err = authority.certify(id.user(), lifetime)
	}
	if err != nil {
		return nil, fmt.Errorf("certify %s/%s in cluster %q: %w", id.Namespace, id.Name, c.name, err)
	}
	return certified, nil
}

// Expire waits until the certificate of id has expired, which must be so within
// a minute: until the API server has answered a request with 401. Then it cuts
// the connections of the cluster's proxies. The API server looks at the
// certificate at each request, so on a connection that was made before it
// answers 401 too; but a watch that is open stays open.
func (c *Cluster) Expire(ctx context.Context, id *Identity) error {
	err := errors.New("it has no certificate")
	if id.Certificate != nil {
		err = c.awaitUnauthorized(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("let the certificate of %s/%s in cluster %q expire: %w", id.Namespace, id.Name, c.name, err)
	}
	c.cutConnections()
	return nil
}
