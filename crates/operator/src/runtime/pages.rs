//! Lists in pages.

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::ListParams;

/// Page size for objects whose size is bounded by the cluster's own components.
pub const PAGE: u32 = 500;

/// Returns the pages of a list, each read when it is polled. `list` returns one page and the token of the next.
pub fn pages<T, E, F>(params: ListParams, mut list: impl FnMut(ListParams) -> F) -> impl Stream<Item = Result<T, E>>
where
    F: Future<Output = Result<(T, Option<String>), E>>,
{
    stream::try_unfold(Some(params), move |params| {
        // Boxed, since the futures of callers would become large.
        let request = params.map(|params| (params.clone(), Box::pin(list(params))));
        async move {
            let Some((params, page)) = request else { return Ok(None) };
            let (page, token) = page.await?;
            Ok(Some((page, token.map(|token| params.continue_token(&token)))))
        }
    })
}

/// Returns the token of the page after this one.
pub fn next_token(list: &ListMeta) -> Option<String> {
    list.continue_.clone().filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;

    use super::*;

    async fn read(tokens: &[Option<&str>]) -> Result<Vec<Option<String>>, &'static str> {
        let mut tokens = tokens.iter();
        let list = |params: ListParams| {
            let next = tokens.next().map(|token| token.map(ToOwned::to_owned)).ok_or("no such page");
            async move { Ok((params.continue_token, next?)) }
        };
        pages(ListParams::default().limit(PAGE), list).try_collect().await
    }

    #[tokio::test]
    async fn pages_are_read_until_there_is_no_token() {
        let asked = read(&[Some("a"), Some("b"), None]).await.unwrap();
        assert_eq!(asked, [None, Some("a".to_owned()), Some("b".to_owned())]);
    }

    #[tokio::test]
    async fn an_error_ends_the_list() {
        assert_eq!(read(&[Some("a")]).await, Err("no such page"));
    }

    #[test]
    fn an_empty_token_is_the_end() {
        let list = |token: &str| ListMeta { continue_: Some(token.to_owned()), ..ListMeta::default() };
        assert_eq!((next_token(&list("")), next_token(&list("a"))), (None, Some("a".to_owned())));
    }
}
