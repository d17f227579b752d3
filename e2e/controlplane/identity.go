package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const adminName = "admin"

// An Identity is a user of one cluster: a token, and for a ServiceAccount also
// where it comes from; or a client certificate.
type Identity struct {
	// Namespace and Name are those of the ServiceAccount. The admin has no
	// namespace.
	Namespace, Name string
	// Secret holds the token. When it is deleted the token ends.
	Secret string
	Token  string
	// Certificate and Key are in PEM. Who has them has no token: see Certify.
	Certificate, Key []byte
}

// user is the name of a ServiceAccount as a user of the API.
func (id *Identity) user() string { return "system:serviceaccount:" + id.Namespace + ":" + id.Name }

// role is the name of the ClusterRole with a ServiceAccount's rules, and of its
// binding.
func (id *Identity) role() string { return id.Namespace + ":" + id.Name }

// Admin returns the identity that has all rights.
func (c *Cluster) Admin() *Identity {
	return &Identity{Name: adminName, Token: c.tokens[kubectl]}
}

// Config returns a configuration for the identity, not limited in its rate. It
// uses the CA of now. url is where to go, such as a Proxy's URL; if empty, to
// the API server itself.
func (c *Cluster) Config(id *Identity, url string) *rest.Config {
	if url == "" {
		url = c.URL()
	}
	return &rest.Config{
		Host:            url,
		BearerToken:     id.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA(), CertData: id.Certificate, KeyData: id.Key},
		QPS:             -1,
	}
}

// Kubeconfig is Config as a kubeconfig file, with the CA and the credentials
// inside.
func (c *Cluster) Kubeconfig(id *Identity, url string) []byte {
	if url == "" {
		url = c.URL()
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[c.name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: c.CA()}
	config.AuthInfos[id.Name] = &clientcmdapi.AuthInfo{
		Token: id.Token, ClientCertificateData: id.Certificate, ClientKeyData: id.Key,
	}
	config.Contexts[c.name] = &clientcmdapi.Context{Cluster: c.name, AuthInfo: id.Name}
	config.CurrentContext = c.name
	content, err := clientcmd.Write(*config)
	if err != nil {
		panic("BUG: a kubeconfig of strings cannot be encoded: " + err.Error())
	}
	return content
}

// ReadRules returns the rights that Linkerd's stock role for remote access
// gives to the credentials of a Link.
func ReadRules() []rbacv1.PolicyRule {
	read := []string{"get", "list", "watch"}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets"}, Verbs: read},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"pods", "endpoints", "services"}, Verbs: read},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		{APIGroups: []string{"policy.linkerd.io"}, Resources: []string{"servers"}, Verbs: read},
		{
			APIGroups:     []string{""},
			Resources:     []string{"configmaps"},
			Verbs:         []string{"get"},
			ResourceNames: []string{"linkerd-config"},
		},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
}

// CreateIdentity makes a ServiceAccount, and the namespace if there is none,
// gives it the rules in the whole cluster, and mints a token for it. If the
// account exists its rules are replaced.
func (c *Cluster) CreateIdentity(ctx context.Context, namespace, name string,
	rules []rbacv1.PolicyRule,
) (*Identity, error) {
	account := &Identity{Namespace: namespace, Name: name}
	err := c.createAccount(ctx, account, rules)
	if err == nil {
		err = c.AwaitRules(ctx, account, "", rules)
	}
	if err != nil {
		return nil, fmt.Errorf("create ServiceAccount %s/%s in cluster %q: %w", namespace, name, c.name, err)
	}
	return c.Mint(ctx, account)
}

func (c *Cluster) createAccount(ctx context.Context, id *Identity, rules []rbacv1.PolicyRule) error {
	client := c.client().typed
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: id.Namespace},
	}, metav1.CreateOptions{})
	if ensure(err) != nil {
		return err
	}
	_, err = client.CoreV1().ServiceAccounts(id.Namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: id.Name},
	}, metav1.CreateOptions{})
	if ensure(err) != nil {
		return err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: id.role()}, Rules: rules}
	_, err = client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: id.Namespace, Name: id.Name}},
	}, metav1.CreateOptions{})
	return ensure(err)
}

// AwaitRules waits until each rule has effect for an account, in a namespace or,
// if it is empty, in all of them: the API server's authorizer receives roles and
// bindings a moment after they are written.
func (c *Cluster) AwaitRules(ctx context.Context, id *Identity, namespace string, rules []rbacv1.PolicyRule) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return until(ctx, func(ctx context.Context) error {
		for _, rule := range rules {
			if len(rule.Resources) == 0 {
				continue // it is about URLs
			}
			resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
			question := &authorizationv1.ResourceAttributes{
				Namespace: namespace, Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
				Verb: rule.Verbs[0],
			}
			if len(rule.ResourceNames) > 0 {
				question.Name = rule.ResourceNames[0]
			}
			allowed, err := c.allows(ctx, id, question)
			if err != nil {
				return err
			}
			if !allowed {
				return fmt.Errorf("it may not %s %s yet", question.Verb, rule.Resources[0])
			}
		}
		return nil
	})
}

// allows reports whether the API server lets an account do something.
func (c *Cluster) allows(ctx context.Context, id *Identity, question *authorizationv1.ResourceAttributes) (bool,
	error,
) {
	review, err := c.client().typed.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: id.user(), ResourceAttributes: question},
		}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// Mint makes a further token for the account of id and waits until it is
// taken. Both are good until they are revoked, each by itself.
//
// The token is that of a Secret of type kubernetes.io/service-account-token,
// which has no end, as a Link's credentials have it. A light cluster has no
// controller to fill such a Secret: there the token is bound to a plain Secret.
func (c *Cluster) Mint(ctx context.Context, id *Identity) (*Identity, error) {
	minted := &Identity{Namespace: id.Namespace, Name: id.Name}
	err := errors.New("the admin has no ServiceAccount to mint tokens for")
	switch {
	case id.Namespace == "":
	case c.options.Light:
		err = c.mintBound(ctx, minted)
	default:
		minted, err = c.mintLasting(ctx, minted)
	}
	if err == nil { // the API server takes a token once it has received the Secret, a moment later
		err = c.awaitAnswer(ctx, minted, func(err error) error { return err })
	}
	if err != nil {
		return nil, fmt.Errorf("mint a token for %s/%s in cluster %q: %w", id.Namespace, id.Name, c.name, err)
	}
	return minted, nil
}

// TokenFor returns a token of the account of id for another audience than the API server, as a projected volume has
// it. It lasts for a day.
func (c *Cluster) TokenFor(ctx context.Context, id *Identity, audience string) (string, error) {
	token, err := c.client().typed.CoreV1().ServiceAccounts(id.Namespace).CreateToken(ctx, id.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{audience}, ExpirationSeconds: new(int64(24 * 60 * 60)),
		}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("a token of %s/%s for %s in cluster %q: %w", id.Namespace, id.Name, audience, c.name, err)
	}
	return token.Status.Token, nil
}

func (c *Cluster) mintLasting(ctx context.Context, id *Identity) (*Identity, error) {
	secret, err := c.client().typed.CoreV1().Secrets(id.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: id.Name + "-token-",
			Annotations:  map[string]string{corev1.ServiceAccountNameKey: id.Name},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return c.awaitToken(ctx, id.Namespace, secret.Name)
}

// TokenOf returns the account whose token a Secret of type
// kubernetes.io/service-account-token holds, once it does and is taken.
func (c *Cluster) TokenOf(ctx context.Context, namespace, secret string) (*Identity, error) {
	id, err := c.awaitToken(ctx, namespace, secret)
	if err == nil {
		err = c.awaitAnswer(ctx, id, func(err error) error { return err })
	}
	if err != nil {
		return nil, fmt.Errorf("token of Secret %s/%s in cluster %q: %w", namespace, secret, c.name, err)
	}
	return id, nil
}

func (c *Cluster) awaitToken(ctx context.Context, namespace, name string) (*Identity, error) {
	id := &Identity{Namespace: namespace, Secret: name}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return id, until(ctx, func(ctx context.Context) error {
		secret, err := c.client().typed.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		id.Name, id.Token = secret.Annotations[corev1.ServiceAccountNameKey],
			string(secret.Data[corev1.ServiceAccountTokenKey])
		if id.Token == "" {
			return fmt.Errorf("the controller has not filled Secret %s", name)
		}
		return nil
	})
}

func (c *Cluster) mintBound(ctx context.Context, id *Identity) error {
	client := c.client().typed.CoreV1()
	secret, err := client.Secrets(id.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{GenerateName: id.Name + "-token-"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	lifetime := int64(math.MaxInt32) // seconds: no end for our purposes
	token, err := client.ServiceAccounts(id.Namespace).CreateToken(ctx, id.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &lifetime,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Secret",
				Name:       secret.Name,
				UID:        secret.UID,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	id.Secret, id.Token = secret.Name, token.Status.Token
	return nil
}

// Revoke ends the token of id: it deletes its Secret, waits until the API
// server has answered a request with 401, and then cuts the connections of
// the cluster's proxies, because a watch that is open stays open whatever
// becomes of its token. Other tokens of the account stay good.
//
// The API server remembers for 10 s that a token was good, so after recent use
// this takes as long.
func (c *Cluster) Revoke(ctx context.Context, id *Identity) error {
	if err := c.revoke(ctx, id); err != nil {
		return fmt.Errorf("revoke the token of %s/%s in cluster %q: %w", id.Namespace, id.Name, c.name, err)
	}
	c.cutConnections()
	return nil
}

func (c *Cluster) revoke(ctx context.Context, id *Identity) error {
	if id.Secret == "" {
		return errors.New("it is not held by a Secret")
	}
	err := c.client().typed.CoreV1().Secrets(id.Namespace).Delete(ctx, id.Secret, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return c.awaitUnauthorized(ctx, id)
}

// awaitUnauthorized waits until the API server has answered a request of id
// with 401.
func (c *Cluster) awaitUnauthorized(ctx context.Context, id *Identity) error {
	return c.awaitAnswer(ctx, id, func(err error) error {
		switch {
		case apierrors.IsUnauthorized(err):
			return nil
		case err != nil:
			return err
		default:
			return errors.New("the credentials still work")
		}
	})
}

// awaitAnswer waits until what the API server answers id is right.
func (c *Cluster) awaitAnswer(ctx context.Context, id *Identity, right func(error) error) error {
	clients, err := newClients(c.Config(id, ""))
	if err != nil {
		return err
	}
	defer clients.close()
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return until(ctx, func(ctx context.Context) error {
		return right(clients.typed.RESTClient().Get().AbsPath("/version").Do(ctx).Error())
	})
}

// cutConnections resets what goes through the cluster's proxies.
func (c *Cluster) cutConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for proxy := range c.proxies {
		proxy.CutConnections()
	}
}

// waitTimeout bounds every wait for the controllers of a running cluster. Each
// is done within a second on an idle machine, Revoke and Expire excepted.
const waitTimeout = time.Minute
