package api

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ReviewAccess asks an API server whether the credentials of client permit an action. As a rule all users
// may ask that about themselves.
func ReviewAccess(
	ctx context.Context, client kubernetes.Interface, what authorizationv1.ResourceAttributes,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what},
		}, metav1.CreateOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	return review.Status, nil
}
