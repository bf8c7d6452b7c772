//! Lists in pages.

use std::time::Duration;

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::ListParams;

/// Page size for objects whose size is bounded by the cluster's own components.
pub const PAGE: u32 = 500;

/// Returns the pages of a list, each read when it is polled. `list` returns one page and the token
/// of the next.
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

/// Number of times that a page is requested again after failures that may pass.
const RETRIES: u32 = 6;
/// Pause after the first failure of a page. Each pause is twice the one before it.
const PAUSE: Duration = Duration::from_millis(500);

/// Reaction to a page that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The list ends with the error.
    Fail,
    /// Request the page again, after a pause.
    Retry,
    /// Request the rest of the list with this token: the snapshot that the list began with was
    /// compacted.
    Resume(String),
}

/// Calls `list` until it succeeds or the error is final, as `recovery` decides.
pub async fn with_recovery<T, E, F>(
    mut params: ListParams,
    mut list: impl FnMut(ListParams) -> F,
    recovery: impl Fn(&E) -> Recovery,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut failures = 0;
    loop {
        let error = match list(params.clone()).await {
            Ok(page) => return Ok(page),
            Err(error) => error,
        };
        failures += 1;
        match recovery(&error) {
            _ if failures > RETRIES => return Err(error),
            Recovery::Fail => return Err(error),
            Recovery::Retry => tokio::time::sleep(PAUSE * 2u32.pow(failures - 1)).await,
            Recovery::Resume(token) => params = params.continue_token(&token),
        }
    }
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

    #[tokio::test(start_paused = true)]
    async fn a_page_survives_failures_and_a_compacted_token() {
        let recovery = |error: &&str| match *error {
            "expired" => Recovery::Resume("fresh".to_owned()),
            "busy" => Recovery::Retry,
            _ => Recovery::Fail,
        };
        let read = async |answers: &[Result<u32, &'static str>]| {
            let (mut answers, mut asked) = (answers.iter().copied(), Vec::new());
            let list = |params: ListParams| {
                asked.push(params.continue_token.unwrap_or_default());
                std::future::ready(answers.next().unwrap_or(Err("no answer")))
            };
            let page = with_recovery(ListParams::default().continue_token("old"), list, recovery).await;
            (page, asked)
        };

        let (page, asked) = read(&[Err("busy"), Err("expired"), Err("busy"), Ok(7)]).await;
        assert_eq!((page, asked), (Ok(7), ["old", "old", "fresh", "fresh"].map(str::to_owned).to_vec()));
        assert_eq!(read(&[Err("denied"), Ok(7)]).await.0, Err("denied"));
        assert_eq!(read(&[Err("busy"); 20]).await.0, Err("busy"), "it gives up some time");
    }
}
