//! The image calls of the interface.

use std::collections::HashMap;

use inplace::cri::proto::v1 as cri;
use inplace::cri::proto::v1::image_service_server::ImageService;
use tonic::{Request, Response, Status};

use super::images::Image;
use super::model::{Model, now};
use super::server::Service;
use super::verbose;

type Answer<T> = Result<Response<T>, Status>;

fn reference(image: Option<cri::ImageSpec>) -> String {
    image.unwrap_or_default().image
}

fn shown(model: &Model, image: &Image) -> cri::Image {
    cri::Image {
        id: model.printed_id(&image.id),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: image.size,
        uid: image.uid.map(|value| cri::Int64Value { value }),
        username: image.username.clone(),
        spec: None,
        pinned: false,
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(&self, request: Request<cri::ListImagesRequest>) -> Answer<cri::ListImagesResponse> {
        let wanted = reference(request.into_inner().filter.and_then(|filter| filter.image));
        let effect = || async {
            Ok(self.0.read(|model| {
                let present = model.images.iter().filter(|image| image.present);
                let images = present
                    .filter(|image| wanted.is_empty() || image.is(&wanted))
                    .map(|image| shown(model, image));
                cri::ListImagesResponse { images: images.collect() }
            }))
        };
        self.0.call("ListImages", &wanted, &wanted, effect).await
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Answer<cri::ImageStatusResponse> {
        let cri::ImageStatusRequest { image, verbose } = request.into_inner();
        let wanted = reference(image);
        let effect = || async {
            Ok(self.0.read(|model| match model.local_image(&wanted) {
                None => cri::ImageStatusResponse::default(),
                Some(image) => cri::ImageStatusResponse {
                    image: Some(shown(model, image)),
                    info: if verbose { verbose::image(image) } else { HashMap::new() },
                },
            }))
        };
        self.0.call("ImageStatus", &wanted, &wanted, effect).await
    }

    async fn pull_image(&self, request: Request<cri::PullImageRequest>) -> Answer<cri::PullImageResponse> {
        let cri::PullImageRequest { image, sandbox_config, .. } = request.into_inner();
        let wanted = reference(image);
        let effect = || async {
            let pulled = self.0.change(|model| {
                model.pulled_for.push(sandbox_config.clone());
                let id = model.pull(&wanted)?;
                // CRI-O returns the digest of the pulled image.
                let digest =
                    model.local_image(&id).filter(|_| model.is_crio()).map(super::images::Image::digest);
                Ok::<_, Status>(digest.map(str::to_owned).unwrap_or(id))
            });
            pulled.map(|image_ref| cri::PullImageResponse { image_ref })
        };
        self.0.call("PullImage", &wanted, &wanted, effect).await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Answer<cri::RemoveImageResponse> {
        let wanted = reference(request.into_inner().image);
        let effect = || async {
            self.0.change(|model| {
                let image = model.images.iter_mut().find(|image| image.present && image.is(&wanted));
                if let Some(image) = image {
                    image.present = false;
                    model.history.push(format!("removed image {wanted}"));
                }
            });
            Ok(cri::RemoveImageResponse {})
        };
        self.0.call("RemoveImage", &wanted, &wanted, effect).await
    }

    async fn image_fs_info(&self, _: Request<cri::ImageFsInfoRequest>) -> Answer<cri::ImageFsInfoResponse> {
        let effect = || async {
            let usage = self.0.read(|model| cri::FilesystemUsage {
                timestamp: now(),
                fs_id: Some(cri::FilesystemIdentifier { mountpoint: model.mountpoint.clone() }),
                used_bytes: Some(cri::UInt64Value { value: model.used_bytes }),
                inodes_used: Some(cri::UInt64Value { value: 1000 }),
            });
            Ok(cri::ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            })
        };
        self.0.call("ImageFsInfo", "", "", effect).await
    }
}
